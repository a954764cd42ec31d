# Depth ladder, gated: 8 attention layers of width 800. Partner: san_depth8_standard.
# torchrun --standalone --nproc_per_node=8 train.py config/san_depth8.py
# Expect 28,475,688 parameters; the study: val loss 2.168 at 21B tokens.

partner = "san_depth8_standard"
n_embd, n_head, n_kv_head = 800, 10, 5
n_layer = 8
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
max_steps = 20000
