# Depth ladder, plain residuals: 48 layers of width 320. Partner: san_depth48.
# torchrun --standalone --nproc_per_node=8 train.py config/san_depth48_standard.py
# Expect 20,008,000 parameters; the study: val loss 2.177 at 21B tokens.

partner = "san_depth48"
residual = "standard"
n_embd, n_head, n_kv_head = 320, 8, 4
n_layer = 48
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
max_steps = 20000
