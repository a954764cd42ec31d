# Size ladder, FFN small: 3 blocks with SwiGLU, width 384. Partner: san_small.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_small.py
# Expect 12,930,054 parameters; the study: val loss 2.3697 at 31.5B tokens.

partner = "san_small"
use_ffn = True
n_layer = 3
muon_lr = 0.04 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

n_embd, n_head, n_kv_head = 384, 6, 3
dataset = "synth"
vocab_size = 16384
max_steps = 30000
