#!/usr/bin/env bash
# fineweb-edu at 31.5B tokens: the pair at equal parameters.
# Needs: python prepare.py fineweb-edu 'fineweb-edu/*.parquet'
# Costs about 51 GPU hours, 6 hours on 8 H100: from the study's 250k (SAN) and 550k (FFN)
# tokens/s per H100, theirs, scaled by dense FLOPs to other shapes. Not measured with this code.
#     GPUS=8 bash runs/fineweb.sh

. "$(dirname "$0")/common.sh"

train san_web                     # 31.5B tokens, 35.0 GPU-h
train ffn_web                     # 31.5B tokens, 15.9 GPU-h
slots 0
