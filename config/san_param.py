# SAN, the base arm: 20 attention layers. Partners: ffn_param, ffn_flop, ffn_depth.
# torchrun --standalone --nproc_per_node=8 train.py config/san_param.py
# Expect 24,130,580 parameters; the study: val loss 2.0685 +- 0.0028 at 105B tokens (3 seeds).

partner = "ffn_param"
use_ffn = False
n_layer = 20
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
