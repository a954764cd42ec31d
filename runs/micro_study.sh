#!/usr/bin/env bash
# The miniature: the study's controls on the embedded corpora, about an hour on two cores.
# Each arm is swept at 400 steps, both rates, and trained at its own locks for 2500 steps (5.1M tokens).
#     bash runs/micro_study.sh            # stop it at any time; the same command goes on
# Then out/report/report.md. Predictions of what comes out: predictions.toml.

GPUS=1 JOBS=${JOBS:-2}
export OMP_NUM_THREADS=1  # one thread a run: the bits depend neither on JOBS nor on the cores
. "$(dirname "$0")/common.sh"

for corpus in microsynth microweb; do
    if [ ! -e data/$corpus/meta.json ]; then python prepare.py $corpus; fi
done

lock() {  # ARM RATE [--set=...]: what its sweep locked; without an interior minimum this ends here
    if [ -n "$DRY" ]; then echo 0.02; return; fi
    python sweep.py "config/$1.py" "--param=$2" --steps=400 "--out_dir=$OUT/sweep/$1" --print_lock \
        ${3+"$3"} 2>/dev/null
}
rates() {  # ARM: both locks, as flags of train.py
    local adam muon
    adam=$(lock "$1" adam_lr)
    muon=$(lock "$1" muon_lr "--set=adam_lr=$adam")
    echo "--adam_lr=$adam --muon_lr=$muon"
}

# Each arm's own rates: adam_lr at the muon_lr of its config, then muon_lr at the adam_lr found.
# Here and below the slowest first, so that both cores are busy to the end.
arms="micro_ffn_depth micro_san micro_ffn_flop micro_ffn_param"
for arm in $arms; do tune $arm --param=adam_lr --steps=400; done
for arm in $arms; do
    await "$OUT/sweep/$arm"; adam=$(lock $arm adam_lr)
    tune $arm --steps=400 "--set=adam_lr=$adam"
done
slots 0
for arm in $arms; do declare "$arm=$(rates $arm)"; done

train micro_ffn_depth $micro_ffn_depth
train micro_san $micro_san
train micro_ffn_flop $micro_ffn_flop
train micro_ffn_param $micro_ffn_param
train micro_ffn_depth $micro_ffn_depth --seed=43
train micro_san $micro_san --seed=43
train micro_ffn_flop $micro_ffn_flop --seed=43
train micro_ffn_param $micro_ffn_param --seed=43

# The same world as plain prose, the noise floor, two ablations, a third seed of the pair.
train micro_san_web $micro_san
train micro_ffn_web $micro_ffn_param
train micro_san_web $micro_san --seed=43
train micro_ffn_web $micro_ffn_param --seed=43
train micro_rms $micro_san
train micro_sandwich $micro_san
train micro_plain_qk $micro_san
train micro_san $micro_san --seed=44
train micro_ffn_param $micro_ffn_param --seed=44
slots 0

python analyze.py "$OUT"/micro_*/ckpt.pt "--out=$OUT/report" ${DRY:+--eval_tokens=4000 --probes=0}
