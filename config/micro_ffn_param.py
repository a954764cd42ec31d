# FFN arm at equal parameters: 2 blocks with SwiGLU. Partner: micro_san.
# python train.py config/micro_ffn_param.py
# Expect 188,804 parameters; val loss in RESULTS.md (5.1M tokens).

partner = "micro_san"
use_ffn = True
n_layer = 2
muon_lr, adam_lr = 0.03, 0.0096  # locked on micro_ffn_param, see RESULTS.md

n_embd, n_head, n_kv_head = 64, 4, 2
block_size = 128
total_batch_size = 2048
device_batch_size = 16
max_steps = 2500
eval_every = 250
eval_tokens = 65536
dtype = "float32"  # measured: at this width bfloat16 is slower on a CPU
