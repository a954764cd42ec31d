# FFN arm at equal training FLOPs (dense, not above): 3 blocks. Partner: micro_san.
# python train.py config/micro_ffn_flop.py
# Expect 250,406 parameters; val loss in RESULTS.md (5.1M tokens).

partner = "micro_san"
use_ffn = True
n_layer = 3
muon_lr, adam_lr = 0.015, 0.0096  # locked on micro_ffn_flop, see RESULTS.md

n_embd, n_head, n_kv_head = 64, 4, 2
block_size = 128
total_batch_size = 2048
device_batch_size = 16
max_steps = 2500
eval_every = 250
eval_tokens = 65536
dtype = "float32"  # measured: at this width bfloat16 is slower on a CPU
