# Ablations, the base they refer to: SAN with gates. Partner: san_rms, the noise floor.
# torchrun --standalone --nproc_per_node=8 train.py config/san_gated.py
# Expect 24,130,580 parameters; the study: val loss 2.1343 at 21B tokens.

partner = "san_rms"
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
max_steps = 20000
