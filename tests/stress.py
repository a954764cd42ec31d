"""Kill a run with SIGKILL at random moments, in saves too, and resume it until it is done.

    python tests/stress.py --kills=50 [--seed=0]

Ends with exit code 0 if the weights, every optimizer slot and the log of every step are the bits
of a run that nothing disturbed. Prints the kills, those inside a save, and what each one cost.
"""
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it is not told where train.py is

import tiny

import checkpoint

# Saves every few steps, so that many kills fall into one; slowed down, so that more do.
OPTIONS = dict(save_every=3, eval_every=10, max_docs=0, keep_last=2)
SHARES = (0.4, 0.4, 0.2)  # of the kills: in a save, in steps, from the start of the process on


def slow_saves(rank):
    """The moments between a save's parts are the dangerous ones: make them long."""
    import os
    for name in ("fsync", "replace", "link"):
        def slow(*args, original=getattr(os, name), **kwargs):
            time.sleep(0.02)
            return original(*args, **kwargs)
        setattr(os, name, slow)


def newest_step(folder):
    """The step that a resume would start from; -1: none is saved yet."""
    try:
        return checkpoint.newest(folder, say=lambda text: None)[1]["step"]
    except checkpoint.CheckpointError:
        return -1


def last_logged(folder):
    try:
        return tiny.log(folder, "train")[-1]["step"] + 1
    except (OSError, ValueError, IndexError):
        return 0


def wait_for(what, process, limit=60):
    end = time.monotonic() + limit
    while process.is_alive() and not what() and time.monotonic() < end:
        time.sleep(0.001)


def kill_once(folder, process, draw):
    """SIGKILL at a random moment of a kind that is drawn too. False: the run ended before it."""
    begun = stamp(folder)
    where = draw.choices(("save", "step", "start"), SHARES)[0]
    if where != "start":
        wait_for(lambda: stamp(folder) != begun, process)
        time.sleep(draw.uniform(0, 0.25))
    if where == "save":
        wait_for(lambda: list(folder.glob(".ckpt*")), process)
    time.sleep(draw.uniform(0, {"save": 0.05, "step": 0, "start": 0.6}[where]))
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def stamp(folder):
    log = folder / "log.jsonl"
    return log.stat().st_mtime_ns if log.exists() else 0


def stress(kills, seed=0, say=print):
    """Returns (kills, those inside a save, steps lost at each)."""
    draw, root = random.Random(seed), Path(tempfile.mkdtemp(prefix="stress-"))
    steps = max(12, 4 * kills)
    options = dict(OPTIONS, max_steps=steps)
    began = time.monotonic()
    assert tiny.wait(tiny.start(root / "straight", **options), 600) == [0]
    step_time = statistics.median(e["dt"] for e in tiny.log(root / "straight", "train", clock=True))
    folder, torn, lost, n = root / "killed", 0, [], 0
    while True:
        before = newest_step(folder)
        (process,) = tiny.start(folder, hook=slow_saves, **options,
                                resume="newest" if before >= 0 else "")
        if n == kills:
            assert tiny.wait([process], 600) == [0], (folder / "rank0.txt").read_text()
            break
        if not kill_once(folder, process, draw):
            assert process.exitcode == 0, (folder / "rank0.txt").read_text()
            break
        n += 1
        after = newest_step(folder)
        assert after >= before, f"kill {n}: step {before} was saved, now {after} is the newest"
        torn += bool(list(folder.glob(".ckpt*")))
        lost.append(max(0, last_logged(folder) - max(after, 0)))
    tiny.assert_same_run(root / "straight", folder)
    say(f"{n} kills, {torn} of them inside a save, over {steps} steps in "
        f"{time.monotonic() - began:.0f} s: the same bits as an undisturbed run")
    say(f"lost per kill: {statistics.mean(lost):.2f} steps (at most {max(lost)}, with a save every "
        f"{options['save_every']}), that is {1000 * statistics.mean(lost) * step_time:.0f} ms at "
        f"{1000 * step_time:.0f} ms a step, and the program's start")
    return n, torn, lost


if __name__ == "__main__":
    given = dict(a.removeprefix("--").split("=") for a in sys.argv[1:])
    kills = int(given.get("kills", 50))
    sys.exit(stress(kills, int(given.get("seed", 0)))[0] < kills)
