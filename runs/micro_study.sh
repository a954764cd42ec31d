#!/usr/bin/env bash
# The miniature: the study's controls on the embedded corpora, 75 minutes on two cores:
# 32 of sweeps, 37 of training, 4 of analysis (parts measured on an AMD EPYC with AVX512, added up).
# Each arm is swept, adam_lr at 400 and muon_lr at 1000 steps, and trained at its own locks for 2500
# (5.1M tokens).
#     bash runs/micro_study.sh            # stop it at any time; the same command goes on
# Then out/report/report.md. Predictions of what comes out: predictions.toml.

GPUS=1 JOBS=${JOBS:-2}
export OMP_NUM_THREADS=1  # one thread a run: the bits depend neither on JOBS nor on the cores
. "$(dirname "$0")/common.sh"

for corpus in microsynth microweb; do
    if [ ! -e data/$corpus/meta.json ]; then python prepare.py $corpus; fi
done

# Each arm's own rates: adam_lr first, at the muon_lr it starts from, then muon_lr at that adam_lr.
# The slowest first, here and below, so that both cores are busy to the end.
arms="micro_ffn_depth micro_san micro_ffn_flop micro_ffn_param"
start() {  # ARM [adam_lr]: where its search starts, whatever its config says
    case $1 in micro_san) echo "--set=muon_lr=0.02,adam_lr=${2:-0.0048}" ;;
               *)         echo "--set=muon_lr=0.03,adam_lr=${2:-0.0096}" ;; esac
}
# measured: muon_lr locked at 400 steps is too high at 2500, for the SAN four times.
adam="--param=adam_lr --steps=400" muon="--param=muon_lr --steps=1000"
lock() {  # ARM RATE STEPS START: what its sweep locked; without an interior minimum this ends here
    if [ -n "$DRY" ]; then echo 0.02; return; fi
    python sweep.py "config/$1.py" "${@:2}" "--out_dir=$OUT/sweep/$1" --print_lock 2>/dev/null
}
for arm in $arms; do tune $arm $adam $(start $arm); done
for arm in $arms; do
    await "$OUT/sweep/$arm"; adam_lr=$(lock $arm $adam $(start $arm))
    tune $arm $muon $(start $arm $adam_lr)
    declare "$arm=$adam_lr"
done
slots 0
for arm in $arms; do
    adam_lr=${!arm}; muon_lr=$(lock $arm $muon $(start $arm $adam_lr))
    declare "$arm=--adam_lr=$adam_lr --muon_lr=$muon_lr"
done

train micro_ffn_depth $micro_ffn_depth
train micro_san $micro_san
train micro_ffn_flop $micro_ffn_flop
train micro_ffn_param $micro_ffn_param
train micro_san $micro_san --seed=43
train micro_ffn_flop $micro_ffn_flop --seed=43
train micro_ffn_param $micro_ffn_param --seed=43

# The same world as plain prose, the noise floor, two ablations, a third seed of the pair.
train micro_san_web $micro_san
train micro_ffn_web $micro_ffn_param
train micro_rms $micro_san
train micro_sandwich $micro_san
train micro_plain_qk $micro_san
train micro_san $micro_san --seed=44
train micro_ffn_param $micro_ffn_param --seed=44
slots 0

OMP_NUM_THREADS=2 python analyze.py "$OUT"/micro_*/ckpt.pt "--out=$OUT/report" ${DRY:+--eval_tokens=4000 --probes=0}
