# FFN arm at equal training FLOPs (dense, not above): 9 blocks. Partner: san_param.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_flop.py
# Expect 43,788,946 parameters; the study: val loss 1.8059 at 105B tokens.

partner = "san_param"
use_ffn = True
n_layer = 9
muon_lr = 0.04 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
