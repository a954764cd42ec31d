#!/usr/bin/env bash
# The study's headline at 105B tokens: equal parameters (3 seeds), equal FLOPs, equal depth.
# Needs: python prepare.py synth 'SYNTH/*.parquet'
# Costs about 821 GPU hours, 103 hours on 8 H100: from the study's 250k (SAN) and 550k (FFN)
# tokens/s per H100, theirs, scaled by dense FLOPs to other shapes. Not measured with this code.
#     GPUS=8 bash runs/headline.sh

. "$(dirname "$0")/common.sh"

train san_param                   # 104.9B tokens, 116.5 GPU-h
train san_param --seed=43         # 104.9B tokens, 116.5 GPU-h
train san_param --seed=44         # 104.9B tokens, 116.5 GPU-h
train ffn_param                   # 104.9B tokens, 53.0 GPU-h
train ffn_param --seed=43         # 104.9B tokens, 53.0 GPU-h
train ffn_param --seed=44         # 104.9B tokens, 53.0 GPU-h
train ffn_flop                    # 104.9B tokens, 102.1 GPU-h
train ffn_depth                   # 104.9B tokens, 210.1 GPU-h
slots 0
