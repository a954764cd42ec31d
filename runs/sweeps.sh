#!/usr/bin/env bash
# The fairness sweep at 5B tokens a cell, extended until the best is interior. It starts from the
# study's base rates (Muon 0.02, AdamW 3e-4) x 0.5, 1, 2, as factors of the locks in the configs.
# Needs: python prepare.py synth 'SYNTH/*.parquet'
# Costs about 65 GPU hours, 8 hours on 8 H100, if it takes the study's number of cells: from the
# study's 250k (SAN) and 550k (FFN) tokens/s per H100, theirs. Not measured with this code.
#     GPUS=8 bash runs/sweeps.sh

. "$(dirname "$0")/common.sh"

tune san_param --steps=4800 --param=muon_lr --factors=0.5,1,2           # 15.1B tokens, 16.8 GPU-h
tune ffn_param --steps=4800 --param=muon_lr --factors=0.25,0.5,1        # 20.1B tokens, 10.2 GPU-h
tune san_adamw --steps=4800 --param=adam_lr --factors=0.25,0.5,1        # 20.1B tokens, 22.4 GPU-h
tune ffn_adamw --steps=4800 --param=adam_lr --factors=0.0625,0.125,0.25  # 30.2B tokens, 15.3 GPU-h
slots 0
