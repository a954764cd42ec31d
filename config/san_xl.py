# Size ladder, SAN xl: 32 attention layers of width 768. Partner: ffn_xl.
# torchrun --standalone --nproc_per_node=8 train.py config/san_xl.py
# Expect 69,235,488 parameters; the study: val loss 1.7849 at 31.5B tokens.

partner = "ffn_xl"
use_ffn = False
n_layer = 32
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

n_embd, n_head, n_kv_head = 768, 12, 6
dataset = "synth"
vocab_size = 16384
max_steps = 30000
