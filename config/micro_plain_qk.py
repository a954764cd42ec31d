# micro_san with queries and keys without their norm. Partner: micro_san.
# python train.py config/micro_plain_qk.py
# Expect 189,130 parameters; val loss in RESULTS.md (5.1M tokens).

partner = "micro_san"
qk_norm = False
n_layer = 10
muon_lr, adam_lr = 0.04, 0.0192  # locked on micro_san, see RESULTS.md

n_embd, n_head, n_kv_head = 64, 4, 2
block_size = 128
total_batch_size = 2048
device_batch_size = 16
max_steps = 2500
eval_every = 250
eval_tokens = 65536
dtype = "float32"  # measured: at this width bfloat16 is slower on a CPU
