#!/usr/bin/env bash
# The optimizer grid at 31.5B tokens: Muon or AdamW, each arm at its own locks.
# san_base and ffn_base are the size ladder's: what is finished is not run again.
# Needs: python prepare.py synth 'SYNTH/*.parquet'
# Costs about 102 GPU hours, 13 hours on 8 H100: from the study's 250k (SAN) and 550k (FFN)
# tokens/s per H100, theirs, scaled by dense FLOPs to other shapes. Not measured with this code.
#     GPUS=8 bash runs/optimizer_grid.sh

. "$(dirname "$0")/common.sh"

train san_base                    # 31.5B tokens, 35.0 GPU-h
train ffn_base                    # 31.5B tokens, 15.9 GPU-h
train san_adamw                   # 31.5B tokens, 35.0 GPU-h
train ffn_adamw                   # 31.5B tokens, 15.9 GPU-h
slots 0
