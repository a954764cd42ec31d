#!/usr/bin/env bash
# Component ablations of the SAN at 21B tokens, against san_gated.
# The study's run without QK-norm diverged: that is a result, and the script goes on.
# Needs: python prepare.py synth 'SYNTH/*.parquet'
# Costs about 163 GPU hours, 20 hours on 8 H100: from the study's 250k (SAN) and 550k (FFN)
# tokens/s per H100, theirs, scaled by dense FLOPs to other shapes. Not measured with this code.
#     GPUS=8 bash runs/ablations.sh

. "$(dirname "$0")/common.sh"

train san_gated                   # 21.0B tokens, 23.3 GPU-h
train san_rms                     # 21.0B tokens, 23.3 GPU-h
train san_sandwich                # 21.0B tokens, 23.3 GPU-h
train san_standard                # 21.0B tokens, 23.3 GPU-h
train san_rezero                  # 21.0B tokens, 23.3 GPU-h
train san_none                    # 21.0B tokens, 23.3 GPU-h
train san_plain_qk                # 21.0B tokens, 23.3 GPU-h
slots 0
