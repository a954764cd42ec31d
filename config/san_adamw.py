# Optimizer grid, SAN with AdamW on everything. Partner: ffn_adamw; with Muon: san_base.
# torchrun --standalone --nproc_per_node=8 train.py config/san_adamw.py
# Expect 24,130,580 parameters; the study: val loss 2.1103 at 31.5B tokens.

partner = "ffn_adamw"
use_ffn = False
n_layer = 20
optimizer = "adamw"
adam_lr = 6e-4 * 8  # the study's locked base rate times devices

dataset = "synth"
vocab_size = 16384
max_steps = 30000
