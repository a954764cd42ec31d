# FFN arm at equal parameters: 4 blocks with SwiGLU in the parameters of 20 without. Partner: san_param.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_param.py
# Expect 24,122,376 parameters; the study: val loss 2.0650 +- 0.0006 at 105B tokens (2 clean seeds).

partner = "san_param"
use_ffn = True
n_layer = 4
muon_lr = 0.04 * 8**0.5  # the study's locked base rates times sqrt(devices) and devices
adam_lr = 3e-4 * 8
muon_order = "orthogonalize_first"  # the order those rates belong to

dataset = "synth"
vocab_size = 16384
max_steps = 100000
