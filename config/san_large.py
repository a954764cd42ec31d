# Size ladder, SAN large: 26 attention layers of width 640. Partner: ffn_large.
# torchrun --standalone --nproc_per_node=8 train.py config/san_large.py
# Expect 42,455,194 parameters; the study: val loss 1.9275 at 31.5B tokens.

partner = "ffn_large"
use_ffn = False
n_layer = 26
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

n_embd, n_head, n_kv_head = 640, 10, 5
dataset = "synth"
vocab_size = 16384
max_steps = 30000
