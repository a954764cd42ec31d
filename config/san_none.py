# Ablation: no residual path at all. Partner: san_gated.
# torchrun --standalone --nproc_per_node=8 train.py config/san_none.py
# Expect 24,130,560 parameters; the study: val loss about 2.88 (+0.75) at 21B tokens.

partner = "san_gated"
residual = "none"
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
max_steps = 20000
