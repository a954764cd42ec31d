# FFN arm at equal parameters: 4 blocks with SwiGLU for 20 without. Partner: san_param.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_param.py
# Expect 24,122,376 parameters; the study: val loss 2.0650 +- 0.0006 at 105B tokens (2 clean seeds).

partner = "san_param"
use_ffn = True
n_layer = 4
muon_lr = 0.04 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
