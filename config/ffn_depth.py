# FFN arm at equal depth: 20 blocks with SwiGLU. Partner: san_param.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_depth.py
# Expect 87,055,400 parameters; the study: val loss 1.5982 at 105B tokens.

partner = "san_param"
use_ffn = True
n_layer = 20
muon_lr = 0.04 * 8**0.5  # the study's locked base rates times sqrt(devices) and devices
adam_lr = 3e-4 * 8
muon_order = "orthogonalize_first"  # the order those rates belong to

dataset = "synth"
vocab_size = 16384
max_steps = 100000
