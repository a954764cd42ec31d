# Ablation: a norm on each sublayer's output, before the gate. Partner: san_gated.
# torchrun --standalone --nproc_per_node=8 train.py config/san_sandwich.py
# Expect 24,140,820 parameters; the study: val loss 2.1251 (-0.0092) at 21B tokens.

partner = "san_gated"
post_norm = True
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
max_steps = 20000
