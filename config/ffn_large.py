# Size ladder, FFN large: 5 blocks with SwiGLU, width 640. Partner: san_large.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_large.py
# Expect 41,213,450 parameters; the study: val loss 1.9059 at 31.5B tokens.

partner = "san_large"
use_ffn = True
n_layer = 5
muon_lr = 0.04 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

n_embd, n_head, n_kv_head = 640, 10, 5
dataset = "synth"
vocab_size = 16384
max_steps = 30000
