# Size ladder, FFN tiny: 2 blocks with SwiGLU, width 256. Partner: san_tiny.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_tiny.py
# Expect 6,161,924 parameters; the study: val loss 2.7664 at 31.5B tokens.

partner = "san_tiny"
use_ffn = True
n_layer = 2
muon_lr = 0.04 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

n_embd, n_head, n_kv_head = 256, 4, 2
dataset = "synth"
vocab_size = 16384
max_steps = 30000
