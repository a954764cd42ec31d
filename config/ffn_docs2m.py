# Repetition: FFN on 2M documents, all: ffn_base. Partner: san_docs2m.
# torchrun --standalone --nproc_per_node=8 train.py config/ffn_docs2m.py
# Expect 24,122,376 parameters; the study: val loss 2.0975 at 31.5B tokens.

partner = "san_docs2m"
use_ffn = True
n_layer = 4
muon_lr = 0.04 * 8**0.5  # the study's locked base rate times sqrt(devices)
muon_order = "orthogonalize_first"  # the order that rate belongs to

max_docs = 2_000_000
dataset = "synth"
vocab_size = 16384
max_steps = 30000
