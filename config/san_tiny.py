# Size ladder, SAN tiny: 10 attention layers of width 256. Partner: ffn_tiny.
# torchrun --standalone --nproc_per_node=8 train.py config/san_tiny.py
# Expect 6,164,490 parameters; the study: val loss 2.7219 at 31.5B tokens.

partner = "ffn_tiny"
use_ffn = False
n_layer = 10
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

n_embd, n_head, n_kv_head = 256, 4, 2
dataset = "synth"
vocab_size = 16384
max_steps = 30000
