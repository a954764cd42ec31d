# fineweb-edu: FFN arm at equal parameters, 4 blocks with SwiGLU. Partner: san_web.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_web.py
# Expect 24,122,376 parameters; the study: val loss 2.9733 at 31.5B tokens.

partner = "san_web"
use_ffn = True
n_layer = 4
muon_lr = 0.04 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "fineweb-edu"
vocab_size = 16384
max_steps = 30000
