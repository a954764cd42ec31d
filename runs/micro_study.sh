#!/usr/bin/env bash
# The miniature: the study's controls on the embedded corpora, about 80 minutes on two cores (estimated).
# Each arm is swept at 400 steps and trained at its own lock for 2000 steps (4.1M tokens).
#     bash runs/micro_study.sh            # stop it at any time; the same command goes on
# Then out/report/report.md. Predictions of what comes out: predictions.toml.

GPUS=1 JOBS=${JOBS:-2}
export OMP_NUM_THREADS=1  # one thread a run: the bits depend neither on JOBS nor on the cores
. "$(dirname "$0")/common.sh"

for corpus in microsynth microweb; do
    if [ ! -e data/$corpus/meta.json ]; then python prepare.py $corpus; fi
done

lock() {  # the locked rate of an arm; without an interior minimum the script ends here
    if [ -n "$DRY" ]; then echo 0.02; return; fi
    python sweep.py "config/$1.py" --steps=400 "--out_dir=$OUT/sweep/$1" --print_lock 2>/dev/null
}

# The slowest first, so that both cores are busy to the end.
tune micro_ffn_depth --steps=400
tune micro_san --steps=400
tune micro_ffn_param --steps=400
tune micro_ffn_flop --steps=400
await "$OUT/sweep/micro_san"; rate=$(lock micro_san); san=--muon_lr=$rate
train micro_san $san
await "$OUT/sweep/micro_ffn_depth"; rate=$(lock micro_ffn_depth)
train micro_ffn_depth --muon_lr=$rate
await "$OUT/sweep/micro_ffn_param"; rate=$(lock micro_ffn_param); ffn=--muon_lr=$rate
await "$OUT/sweep/micro_ffn_flop"; rate=$(lock micro_ffn_flop)
train micro_ffn_flop --muon_lr=$rate
train micro_ffn_param $ffn

train micro_san $san --seed=43
train micro_san $san --seed=44
train micro_ffn_param $ffn --seed=43
train micro_ffn_param $ffn --seed=44

# The noise floor, then ablations, then the same world as plain prose; each at its arm's lock.
train micro_rms $san
train micro_sandwich $san
train micro_plain_qk $san
train micro_san_web $san
train micro_ffn_web $ffn
slots 0

python analyze.py "$OUT"/micro_*/ckpt.pt "--out=$OUT/report" ${DRY:+--eval_tokens=4000 --probes=0}
