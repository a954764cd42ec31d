# Depth ladder, plain residuals: 8 layers of width 800. Partner: san_depth8.
# torchrun --standalone --nproc_per_node=8 train.py config/san_depth8_standard.py
# Expect 28,475,680 parameters; the study: val loss 2.164 at 21B tokens.

partner = "san_depth8"
residual = "standard"
n_embd, n_head, n_kv_head = 800, 10, 5
n_layer = 8
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
max_steps = 20000
