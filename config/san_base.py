# Size ladder, SAN base: 20 attention layers of width 512. Partner: ffn_base.
# torchrun --standalone --nproc_per_node=8 train.py config/san_base.py
# Expect 24,130,580 parameters; the study: val loss 2.1159 at 31.5B tokens (2.1126 in its grid).

partner = "ffn_base"
use_ffn = False
n_layer = 20
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
max_steps = 30000
