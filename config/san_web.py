# fineweb-edu: SAN, 20 attention layers. Partner: ffn_web.
# torchrun --standalone --nproc_per_node=8 train.py config/san_web.py
# Expect 24,130,580 parameters; the study: val loss 3.0131 at 31.5B tokens.

partner = "ffn_web"
use_ffn = False
n_layer = 20
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "fineweb-edu"
vocab_size = 16384
max_steps = 30000
