#!/usr/bin/env bash
# The size ladder at 31.5B tokens: both arms at five sizes.
# Needs: python prepare.py synth 'SYNTH/*.parquet'
# Costs about 307 GPU hours, 38 hours on 8 H100: from the study's 250k (SAN) and 550k (FFN)
# tokens/s per H100, theirs, scaled by dense FLOPs to other shapes. Not measured with this code.
#     GPUS=8 bash runs/size_ladder.sh

. "$(dirname "$0")/common.sh"

train san_tiny                    # 31.5B tokens, 8.8 GPU-h
train ffn_tiny                    # 31.5B tokens, 4.0 GPU-h
train san_small                   # 31.5B tokens, 18.3 GPU-h
train ffn_small                   # 31.5B tokens, 8.6 GPU-h
train san_base                    # 31.5B tokens, 35.0 GPU-h
train ffn_base                    # 31.5B tokens, 15.9 GPU-h
train san_large                   # 31.5B tokens, 58.5 GPU-h
train ffn_large                   # 31.5B tokens, 26.5 GPU-h
train san_xl                      # 31.5B tokens, 89.9 GPU-h
train ffn_xl                      # 31.5B tokens, 41.3 GPU-h
slots 0
