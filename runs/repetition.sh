#!/usr/bin/env bash
# Repetition at 31.5B tokens: 2M, 8M, 32M and all (about 78M) documents.
# All documents: the size ladder's base pair, what is finished is not run again.
# Needs: python prepare.py synth 'SYNTH/*.parquet'
# Costs about 204 GPU hours, 25 hours on 8 H100: from the study's 250k (SAN) and 550k (FFN)
# tokens/s per H100, theirs, scaled by dense FLOPs to other shapes. Not measured with this code.
#     GPUS=8 bash runs/repetition.sh

. "$(dirname "$0")/common.sh"

train san_docs2m                  # 31.5B tokens, 35.0 GPU-h
train ffn_docs2m                  # 31.5B tokens, 15.9 GPU-h
train san_docs8m                  # 31.5B tokens, 35.0 GPU-h
train ffn_docs8m                  # 31.5B tokens, 15.9 GPU-h
train san_docs32m                 # 31.5B tokens, 35.0 GPU-h
train ffn_docs32m                 # 31.5B tokens, 15.9 GPU-h
train san_base                    # 31.5B tokens, 35.0 GPU-h
train ffn_base                    # 31.5B tokens, 15.9 GPU-h
slots 0
