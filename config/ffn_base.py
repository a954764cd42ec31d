# Size ladder, FFN base: 4 blocks with SwiGLU, width 512. Partner: san_base.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_base.py
# Expect 24,122,376 parameters; the study: val loss 2.0963 at 31.5B tokens (2.0933 in its grid).

partner = "san_base"
use_ffn = True
n_layer = 4
muon_lr = 0.04 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

dataset = "synth"
vocab_size = 16384
max_steps = 30000
