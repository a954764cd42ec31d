# FFN arm at equal depth: 20 blocks with SwiGLU. Partner: san_param.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_depth.py
# Expect 87,055,400 parameters; the study: val loss 1.5982 at 105B tokens.

partner = "san_param"
use_ffn = True
n_layer = 20
muon_lr = 0.04 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
