# Depth ladder: 20 blocks with SwiGLU, gated. Partner: ffn_depth20_standard.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_depth20.py
# Expect 87,055,400 parameters; the study: val loss 1.6977 at 21B tokens.

partner = "ffn_depth20_standard"
use_ffn = True
n_layer = 20
muon_lr = 0.04 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
max_steps = 20000
