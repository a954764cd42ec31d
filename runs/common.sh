# Sourced by the scripts beside it: train and tune skip what is finished and resume what is not, so
# that a script that was stopped, at any point, goes on when it is started again.
#   GPUS=8   processes of a run; 1: plain python      OUT=out   where the runs go
#   JOBS=1   runs at a time; above 1 their output     FLAGS=    more options for every training run,
#            goes to console.txt in their folders               as --device_batch_size=16
#   DRY=1    one step of a tiny shape on the embedded corpus: tries every name and option

set -eo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
GPUS=${GPUS:-8} JOBS=${JOBS:-1} OUT=${OUT:-out}${DRY:+/dry}
launch="torchrun --standalone --nproc_per_node=$GPUS"
if [ "$GPUS" = 1 ] || [ -n "$DRY" ]; then launch=python; fi
# 240 is a multiple of every arm's number of heads.
tiny="n_embd=240 n_layer=2 block_size=128 total_batch_size=256 device_batch_size=1 eval_tokens=256
      dataset=microsynth vocab_size=0 compile=false"
outs=()  # by process number: the folder of each run that is going

leave() {
    trap '' INT TERM
    if [ ${#outs[@]} -gt 0 ]; then kill "${!outs[@]}" 2>/dev/null || true; wait; fi
}
trap leave EXIT
trap 'exit 75' INT TERM

# over FOLDER: its run is done, or has diverged, which is a result too.
over() { grep -qsE '"event": "(done|nonfinite)"' "$1/log.jsonl"; }

# Take note of runs that have ended. One that failed ends the script; the others save.
poll() {
    local pid out code
    for pid in "${!outs[@]}"; do
        if kill -0 "$pid" 2>/dev/null; then continue; fi
        out=${outs[$pid]} code=0
        unset "outs[$pid]"
        wait "$pid" || code=$?
        if [ $code -gt 1 ] || { [ $code = 1 ] && ! over "$out"; }; then
            echo "$out: exit code $code" >&2
            if [ -e "$out/console.txt" ]; then tail -n 1 "$out/console.txt" >&2; fi
            exit $code
        fi
        echo "$(date +%H:%M:%S) $out: ended"
    done
}

# slots N: wait until at most N runs are going.    await FOLDER: until that run has ended.
slots() { poll; while [ ${#outs[@]} -gt "$1" ]; do sleep 1; poll; done; }
going() { case " ${outs[*]} " in *" $1 "*) return 0 ;; esac; return 1; }
await() { poll; while going "$1"; do sleep 1; poll; done; }

# begin FOLDER COMMAND ...: start a run as soon as a slot is free.
begin() {
    local out=$1; shift
    slots $((JOBS - 1))
    mkdir -p "$out"
    echo "$(date +%H:%M:%S) $out: $*"
    if [ "$JOBS" = 1 ]; then "$@" & else "$@" >"$out/console.txt" 2>&1 & fi
    outs[$!]=$out
}

# train CONFIG [--key=value ...]: into OUT/CONFIG, with another seed than 42 OUT/CONFIG_s<seed>.
train() {
    local config=$1 out=$OUT/$1 flag; shift
    for flag; do case $flag in --seed=42) ;; --seed=*) out+=_s${flag#*=} ;; esac; done
    if over "$out"; then echo "$out: was finished before"; return; fi
    if [ -n "$DRY" ]; then set -- "$@" $(printf -- '--%s ' $tiny) --max_steps=1 --overwrite
    elif compgen -G "$out/ckpt*.pt" >/dev/null; then set -- "$@" --resume; fi
    begin "$out" $launch train.py "config/$config.py" "--out_dir=$out" $FLAGS "$@"
}

# tune CONFIG [--key=value ...]: sweep an arm in OUT/sweep/CONFIG; its ledger says what is left.
tune() {
    local config=$1 out=$OUT/sweep/$1; shift
    if [ -n "$DRY" ]; then set -- "$@" --steps=1 --limit=3 "--set=$(printf '%s,' $tiny)"
    elif [ "$launch" != python ]; then set -- "$@" "--nproc=$GPUS"; fi
    begin "$out" python sweep.py "config/$config.py" "--out_dir=$out" "$@"
}
