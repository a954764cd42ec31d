# Repetition: SAN on 8M documents, all: san_base. Partner: ffn_docs8m.
# torchrun --standalone --nproc_per_node=8 train.py config/san_docs8m.py
# Expect 24,130,580 parameters; the study: val loss 2.1117 at 31.5B tokens.

partner = "ffn_docs8m"
use_ffn = False
n_layer = 20
muon_lr = 0.02 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

max_docs = 8_000_000
dataset = "synth"
vocab_size = 16384
max_steps = 30000
