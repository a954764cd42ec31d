# Depth ladder, gated: 48 attention layers of width 320. Partner: san_depth48_standard.
# torchrun --standalone --nproc_per_node=8 train.py config/san_depth48.py
# Expect 20,008,048 parameters; the study: val loss 2.175 at 21B tokens.

partner = "san_depth48_standard"
n_embd, n_head, n_kv_head = 320, 8, 4
n_layer = 48
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
max_steps = 20000
