# Optimizer grid, FFN with AdamW on everything. Partner: san_adamw; with Muon: ffn_base.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_adamw.py
# Expect 24,122,376 parameters; the study: val loss 2.0950 at 31.5B tokens.

partner = "san_adamw"
use_ffn = True
n_layer = 4
optimizer = "adamw"
adam_lr = 2.4e-3 * 8  # the study's locked base rate times devices

dataset = "synth"
vocab_size = 16384
max_steps = 30000
