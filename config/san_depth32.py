# Depth ladder, gated: 32 attention layers of width 400. Partner: san_depth32_standard.
# torchrun --standalone --nproc_per_node=8 train.py config/san_depth32.py
# Expect 21,929,392 parameters; the study: val loss 2.153 at 21B tokens.

partner = "san_depth32_standard"
n_embd, n_head, n_kv_head = 400, 10, 5
n_layer = 32
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
max_steps = 20000
