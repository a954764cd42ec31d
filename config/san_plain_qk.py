# Ablation: queries and keys without their norm. Partner: san_gated.
# torchrun --standalone --nproc_per_node=8 train.py config/san_plain_qk.py
# Expect 24,128,020 parameters; the study: diverges, val loss 8.28 at 21B tokens.

partner = "san_gated"
qk_norm = False
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
max_steps = 20000
