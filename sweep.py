"""The fairness sweep: one arm at several values of one rate, extended until the best is interior.

    python sweep.py config/micro_san.py --steps=400                       # Muon's rate x 0.5, 1, 2
    python sweep.py config/ffn_adamw.py --param=adam_lr --steps=4800 --nproc=8
    rate=$(python sweep.py config/micro_san.py --steps=400 --print_lock)  # the lock, for scripts

A cell is a run of train.py in out/sweep/<config>/<param>_<value>/. The ledger, <param>.json beside
it, is written after each: the same command repeats no finished cell and resumes an interrupted one.
While the best is at an edge, the next value is twice or half of it; a diverged cell is the worst.
Exit codes: 0 done, 1 --print_lock and no interior best, 2 a mistake or a failed cell, 75 stopped by
a signal. Source: arXiv:2607.18363, section 2.
"""
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from checkpoint import FREE, differences
from configurator import ConfigError, UserError, fail, load, split
from prepare import write_whole
from runtime import MISTAKES, SIGNALS, STOPPED, Ranks
from train import TrainConfig, open_data

TRAIN = Path(__file__).with_name("train.py")
seen = []  # signals


@dataclass(frozen=True)
class SweepConfig:
    """Options of sweep.py: python sweep.py CONFIG [--key=value ...]"""

    param: str = "muon_lr"  # the rate that is swept
    factors: str = "0.5,1,2"  # of the config's value, to begin with
    steps: int = 0  # max_steps of every cell, the short horizon; 0: the config's
    limit: int = 8  # no edge is extended beyond so many cells
    jobs: int = 1  # cells at a time; OMP_NUM_THREADS is 1 unless set, so bits do not depend on it
    nproc: int = 0  # processes of a cell under torchrun; 0: plain python
    set: str = ""  # further options of train.py for every cell: seed=43,n_layer=4
    out_dir: str = ""  # of ledger and cells; empty: out/sweep/<config>
    print_lock: bool = False  # the lock alone on stdout, all else on stderr


class Stopped(UserError):
    code = STOPPED


class Sweep:
    """The ledger of one arm and one rate, and what fills it. Raises ConfigError."""

    def __init__(self, config, options):
        self.options, extra = options, [f"--{part}" for part in options.set.split(",") if part]
        cfg, self.name = load(TrainConfig, [config, *extra])
        cfg = replace(cfg, max_steps=options.steps or cfg.max_steps)
        self.param, self.base = options.param, getattr(cfg, options.param, None)
        if type(self.base) is not float or not self.base > 0 or not cfg.eval_every:
            raise ConfigError(f"{config}: {self.param} must be a rate above 0, eval_every not 0")
        try:
            self.values = [float(f"{self.base * float(f):g}") for f in options.factors.split(",")]
        except ValueError:
            raise ConfigError(f"factors are {options.factors!r}; write 0.5,1,2") from None
        self.folder = Path(options.out_dir or Path("out/sweep") / self.name)
        self.path, self.cells = self.folder / f"{self.param}.json", {}
        self.argv = [config, *extra, f"--max_steps={cfg.max_steps}"]
        self.settings, free = asdict(cfg), FREE | {self.param}  # a lock may move into the config
        if self.path.exists():
            ledger = json.loads(self.path.read_bytes())
            self.cells = ledger["cells"]
            if changed := differences(ledger["settings"], self.settings, free):
                raise ConfigError(f"{self.path} is of another sweep: {'; '.join(changed)}; give "
                                  f"another --out_dir")
        open_data(cfg, Ranks())  # an embedded corpus is written once, not by two cells at a time

    def best(self):
        """(value, its position among the values, whether it is an interior minimum)."""
        losses = [math.inf if c["loss"] is None else c["loss"] for c in self.cells.values()]
        at = losses.index(min(losses))
        inside = 0 < at < len(losses) - 1 and losses[at] < math.inf
        return list(self.cells.values())[at]["value"], at, inside

    def run(self):
        """Cells until the best is interior, or the limit."""
        while True:
            self.run_cells([v for v in self.values if f"{v:g}" not in self.cells])
            value, at, interior = self.best()
            if interior or len(self.cells) >= self.options.limit:
                return
            self.values = [float(f"{value * (2 if at else 0.5):g}")]

    def start(self, value):
        """Start or resume a cell: (process, folder)."""
        folder, n = self.folder / f"{self.param}_{value:g}", self.options.nproc
        folder.mkdir(parents=True, exist_ok=True)
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={n}"] * (n > 0)
        command = [sys.executable, *launch, TRAIN, *self.argv, f"--{self.param}={value:g}",
                   f"--out_dir={folder}", *["--resume"] * any(folder.glob("ckpt*.pt"))]
        env = {"OMP_NUM_THREADS": "1"} | os.environ
        with open(folder / "console.txt", "w") as file:
            return subprocess.Popen(command, stdout=file, stderr=file, env=env), folder

    def run_cells(self, waiting):
        """Run a cell a value, jobs at a time. If one fails or a signal comes, the others save."""
        running = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.options.jobs:
                    value = waiting.pop(0)
                    running[value] = self.start(value)
                time.sleep(0.05)
                if seen:
                    raise Stopped("stopped, the cells are saved; the same command goes on")
                for value in [v for v, cell in running.items() if cell[0].poll() is not None]:
                    self.enter(value, *running.pop(value))
        finally:
            for process, _ in running.values():
                process.terminate()
            for process, _ in running.values():
                process.wait()

    def enter(self, value, process, folder):
        """Put a cell that ended into the ledger. Raises UserError, Stopped."""
        console, code = (folder / "console.txt").read_text(errors="replace"), process.returncode
        # torchrun ends with 1 whatever its workers end with: only their words tell.
        diverged = code == 1 and "is not finite" in console
        if code == STOPPED or code == 1 and "stopped by a signal" in console:
            raise Stopped(f"{folder} was stopped and has saved; the same command goes on")
        if code and not diverged:
            reason = console.strip().rpartition("\n")[2][-200:]
            raise UserError(f"{folder}/console.txt: failed with exit code {code}: {reason}")
        last = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
        loss = None if diverged or not math.isfinite(last["val_loss"]) else last["val_loss"]
        print(f"{self.name} {self.param}={value:g}: {shown(loss)}", flush=True)
        self.cells[f"{value:g}"] = {"value": value, "loss": loss, "step": last["step"]}
        self.cells = dict(sorted(self.cells.items(), key=lambda item: item[1]["value"]))
        best, _, interior = self.best()
        ledger = {"name": self.name, "param": self.param, "lock": best if interior else None,
                  "interior": interior, "cells": self.cells, "settings": self.settings}
        write_whole(self.path, json.dumps(ledger, indent=1).encode())

    def table(self):
        """The study's form: a column a factor, the best in bold, the lock last."""
        (best, at, interior), cells = self.best(), self.cells.values()
        losses = [shown(c["loss"]) for c in cells]
        losses[at] = f"**{losses[at]}**"
        head = [f"{self.name} {self.param}", *(f"{c['value'] / self.base:.3g}x" for c in cells)]
        steps, lock = f"{self.settings['max_steps']} steps", f"{best:g}" if interior else "none"
        rows = [*head, "lock"], ["---"] * (len(head) + 1), [steps, *losses, lock]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def shown(loss):
    return "diverged" if loss is None else f"{loss:.4f}"


def main(argv):
    configs, flags = split(SweepConfig, argv)
    options, _ = load(SweepConfig, flags)
    if len(configs) != 1 or options.jobs < 1 or options.jobs > 1 < options.nproc:
        raise ConfigError("give one config; jobs is at least 1, and 1 with nproc above 1")
    with contextlib.redirect_stdout(sys.stderr) if options.print_lock else contextlib.nullcontext():
        sweep = Sweep(configs[0], options)
        sweep.run()
        print(sweep.table())
    value, at, interior = sweep.best()
    if not interior:
        print(f"no lock: {value:g}, the best, is the {'highest' if at else 'lowest'} of "
              f"{len(sweep.cells)} values; a higher --limit goes on", file=sys.stderr)
    elif options.print_lock:
        print(f"{value:g}")
    return int(options.print_lock and not interior)


if __name__ == "__main__":
    for number in SIGNALS:
        signal.signal(number, lambda *_: seen.append(1))
    try:
        sys.exit(main(sys.argv[1:]))
    except MISTAKES as error:
        fail(error)
