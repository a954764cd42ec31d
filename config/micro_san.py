# SAN at micro size: 10 attention layers on the embedded corpus. Partners: micro_ffn_param, _flop, _depth.
# python train.py config/micro_san.py

partner = "micro_ffn_param"
use_ffn = False
n_layer = 10
muon_lr = 0.02

dataset = "microsynth"
n_embd, n_head, n_kv_head = 64, 4, 2
block_size = 128
total_batch_size = 4096
device_batch_size = 32
max_steps = 1500
eval_every = 250
eval_tokens = 65536
dtype = "float32"  # measured: at this width bfloat16 is slower on a CPU
