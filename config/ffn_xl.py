# Size ladder, FFN xl: 6 blocks with SwiGLU, width 768. Partner: san_xl.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_xl.py
# Expect 65,677,836 parameters; the study: val loss 1.7647 at 31.5B tokens.

partner = "san_xl"
use_ffn = True
n_layer = 6
muon_lr = 0.04 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

n_embd, n_head, n_kv_head = 768, 12, 6
dataset = "synth"
vocab_size = 16384
max_steps = 30000
