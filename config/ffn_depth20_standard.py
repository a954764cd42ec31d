# Depth ladder: 20 blocks with SwiGLU, plain residuals. Partner: ffn_depth20.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_depth20_standard.py
# Expect 87,055,360 parameters; the study: val loss 1.6930 at 21B tokens.

partner = "ffn_depth20"
residual = "standard"
use_ffn = True
n_layer = 20
muon_lr = 0.04 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
max_steps = 20000
