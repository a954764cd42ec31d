#!/usr/bin/env bash
# Depth at 21B tokens: 8, 32 and 48 attention layers, 20 FFN blocks, gated and plain residuals.
# Needs: python prepare.py synth 'SYNTH/*.parquet'
# Costs about 233 GPU hours, 29 hours on 8 H100: from the study's 250k (SAN) and 550k (FFN)
# tokens/s per H100, theirs, scaled by dense FLOPs to other shapes. Not measured with this code.
#     GPUS=8 bash runs/depth.sh

. "$(dirname "$0")/common.sh"

train san_depth8                  # 21.0B tokens, 19.3 GPU-h
train san_depth8_standard         # 21.0B tokens, 19.3 GPU-h
train san_depth32                 # 21.0B tokens, 26.2 GPU-h
train san_depth32_standard        # 21.0B tokens, 26.2 GPU-h
train san_depth48                 # 21.0B tokens, 29.2 GPU-h
train san_depth48_standard        # 21.0B tokens, 29.2 GPU-h
train ffn_depth20                 # 21.0B tokens, 42.0 GPU-h
train ffn_depth20_standard        # 21.0B tokens, 42.0 GPU-h
slots 0
