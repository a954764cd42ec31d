# Size ladder, SAN small: 14 attention layers of width 384. Partner: ffn_small.
# torchrun --standalone --nproc_per_node=8 train.py config/san_small.py
# Expect 12,492,174 parameters; the study: val loss 2.3771 at 31.5B tokens.

partner = "ffn_small"
use_ffn = False
n_layer = 14
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

n_embd, n_head, n_kv_head = 384, 6, 3
dataset = "synth"
vocab_size = 16384
max_steps = 30000
