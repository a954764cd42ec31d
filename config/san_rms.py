# Ablation: the same function with gains from 1. Partner: san_gated.
# torchrun --standalone --nproc_per_node=8 train.py config/san_rms.py
# Expect 24,130,580 parameters; the study: val loss 2.1358 (+0.0015, its noise floor) at 21B tokens.

partner = "san_gated"
norm = "rms"
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
max_steps = 20000
