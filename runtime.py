"""What a run stands on: ranks, corpus, signals, log file, device, compiler, commit.

Apart from train.py because none of it is about training: it changes with machines.
"""

import functools
import hashlib
import json
import math
import os
import platform
import signal
import subprocess
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from tqdm import tqdm

import prepare
from configurator import ConfigError, UserError

STOPPED = 75  # exit code: a signal stopped the run (EX_TEMPFAIL: try again)
SIGNALS = {signal.SIGTERM, signal.SIGINT}
MISTAKES = (UserError, OSError)  # what ends in one line instead of a traceback


class Ranks:
    """This process among its peers. Without torchrun: one process, no process group."""

    def __init__(self):
        env = [key in os.environ for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")]
        if any(env) and not all(env):
            raise ConfigError("RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR are only partly set; "
                              "unset them, or start with torchrun")
        self.rank, self.local, self.world = (
            int(os.environ.get(k, d)) for k, d in
            (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1)))
        self.main = self.rank == 0

    def start(self, device):
        if self.world > 1:
            nccl = device.type == "cuda" and dist.is_nccl_available()
            # One rank may compile or save for long while the others wait.
            dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo",
                                    timeout=timedelta(hours=2))

    def sum(self, values, device, dtype=torch.int64):
        """values summed over all ranks, as a list."""
        if self.world == 1:
            return list(values)
        total = torch.tensor(values, dtype=dtype, device=device)
        dist.all_reduce(total)
        return total.tolist()

    def from_main(self, make):
        """make() on rank 0, its result on all. An error of rank 0 is raised on all."""
        box = [None, None]
        if self.main:
            try:
                box[0] = make()
            except MISTAKES as error:
                box[1] = error
        if self.world > 1:
            dist.broadcast_object_list(box, device="cpu")  # a checkpoint must not fill the GPU
        if box[1] is not None:
            raise box[1]
        return box[0]


def open_data(cfg, ranks):
    """The corpus; an embedded one is written first where it is missing. Raises DataError."""
    folder = Path(cfg.data_dir) / cfg.dataset
    if cfg.dataset in ("microsynth", "microweb"):
        def build():
            if not (folder / "meta.json").exists():
                prepare.build(cfg.dataset, [], cfg.dataset, cfg.data_dir)

        ranks.from_main(build)
        if ranks.local == 0:
            build()  # a node that does not share rank 0's disk
        ranks.sum([0], "cpu")  # wait for it
    return prepare.Dataset(folder, verify=cfg.verify_data)


class Stop:
    """True once SIGTERM or SIGINT came. Until wait() is called a signal just ends the program."""

    def __init__(self):
        self.waiting, self.seen = False, False
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number, frame):
        self.seen = True
        if not self.waiting:
            raise SystemExit(STOPPED)

    def wait(self):
        """From here on signals wait for the end of a step."""
        self.waiting = True
        if hasattr(signal, "pthread_sigmask"):
            # Blocked, and looked at: child processes inherit that, so that Ctrl-C, which goes to
            # all of them, does not break a C++ compiler off and the step with it.
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def __bool__(self):
        pending = signal.sigpending() if hasattr(signal, "sigpending") else set()
        # Kept, for a thread that does not block it may take the signal over the next moment.
        self.seen = self.seen or bool(pending & SIGNALS)
        return self.seen


class Log:
    """log.jsonl and the console, on rank 0 only. A resume at a step cuts what it will repeat."""

    def __init__(self, folder, main, resume_step=None):
        self.file, self.watch = None, None
        if main:
            path, keep = Path(folder) / "log.jsonl", []
            if resume_step is not None and path.exists():
                keep = [line for line in path.read_bytes().splitlines(keepends=True)
                        if self._place(line) <= (resume_step, False)]
            prepare.write_whole(path, b"".join(keep))
            self.file = open(path, "a", encoding="utf-8")

    @staticmethod
    def _place(line):
        try:
            event = json.loads(line)
            return event["step"], event["event"] != "branch"  # how a run began is not repeated
        except (ValueError, KeyError, TypeError):
            return math.inf, 0  # a kill or a power cut tore the line

    def write(self, event, step, **values):
        if self.file:
            self.file.write(json.dumps({"event": event, "step": step, **values}) + "\n")
            self.file.flush()
            if self.watch:
                self.watch.write(event, step, values)

    def sync(self):
        """Onto the disk: a checkpoint must not outlive the lines before it."""
        if self.file:
            os.fsync(self.file.fileno())

    def say(self, text):
        if self.file:
            tqdm.write(text)

    def close(self):
        if self.watch:
            self.watch.close()


class Watch:
    """Numbers of log.jsonl to Weights & Biases as well, where --wandb_project asks for it. Whatever
    fails there is said once and ends the watching, never the run."""

    def __init__(self, project, name, folder, say):
        self.run, self.say = None, say
        if project:
            self._safely(self._open, project, name, folder)

    def _open(self, project, name, folder):
        import wandb
        about = (Path(folder) / "run.json").read_bytes()  # stays over a resume, and so does the id
        self.run = wandb.init(
            project=project, name=name or None, dir=str(folder), config=json.loads(about),
            id=hashlib.sha256(about).hexdigest()[:16], resume="allow",
            settings=wandb.Settings(init_timeout=60))  # fmt: skip

    def _safely(self, act, *values, **options):
        try:
            act(*values, **options)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            self.run = None
            self.say(f"wandb: off from here, the run goes on and log.jsonl has all: {reason}")

    def write(self, event, step, values):
        if self.run:
            numbers = {f"{event}/{k}": v for k, v in values.items() if isinstance(v, (int, float))}
            self._safely(self.run.log, numbers, step=step)

    def close(self):
        """Wait a minute for what is still to be sent: without a connection it never ends."""
        if self.run:
            last = threading.Thread(target=self._safely, args=(self.run.finish,), daemon=True)
            last.start()
            last.join(60)


def pick_device(cfg, ranks):
    """(device, activation dtype)."""
    try:
        import torch._dynamo  # noqa: F401  any optimizer needs it, and it makes its folder at once
    except OSError as error:
        raise ConfigError(f"torch cannot make its cache folder ({error}); set "
                          f"TORCHINDUCTOR_CACHE_DIR to one that can be written") from error
    name = cfg.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch sees no CUDA device; try --device=cpu")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device is mps, but torch sees no such device; try --device=cpu")
    if name == "cuda":
        torch.cuda.set_device(ranks.local)
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        # measured with AVX512 alone: a base step takes 0.65 of its time in float32.
        fast = name == "cpu" and (torch.cpu._is_amx_tile_supported()
                                  or torch.cpu._is_avx512_bf16_supported())
    dtype = cfg.dtype if cfg.dtype != "auto" else "bfloat16" if fast else "float32"
    device = torch.device(name, ranks.local) if name == "cuda" else torch.device(name)
    return device, getattr(torch, dtype)


def compile_model(model, cfg, device, say):
    """Compile in place; where that cannot work, say so and leave the model eager."""
    if platform.system() == "Windows" or device.type == "mps":
        return say(f"compile: off on {platform.system()}/{device.type}, running eager")
    try:
        # The compiler is first called at the first run, so only a run tells whether it works.
        torch.compile(lambda x: x.sin() + 1)(torch.ones(64, device=device))
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:120]
        return say(f"compile: not possible here ({type(error).__name__}: {reason}), running eager; "
                   f"it needs a C++ compiler (CXX) and a writable TORCHINDUCTOR_CACHE_DIR")
    if cfg.compile_whole:
        return model.compile(dynamic=False)
    for block in model.blocks:
        block.compile(dynamic=False, fullgraph=True)
    model.loss_sums = torch.compile(model.loss_sums, dynamic=False, fullgraph=True)


# Dense bf16 peaks in FLOP/s, without sparsity, from the makers' data sheets.
PEAK_FLOPS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "B200": 2250e12,
              "L40S": 362e12, "RTX 4090": 165e12, "RTX 3090": 71e12}  # fmt: skip


def peak_flops(device):
    """Peak of one device, or None where it is not known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for key, peak in PEAK_FLOPS.items() if key in name), None)


def machine(device):
    """What run.json keeps of the place and time of a run."""
    cuda = device.type == "cuda"
    return {"device": torch.cuda.get_device_name(device) if cuda else platform.machine(),
            "threads": torch.get_num_threads(), "commit": commit(),
            "versions": {"python": platform.python_version(), "torch": torch.__version__,
                         "numpy": np.__version__},
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds")}


@functools.cache
def commit():
    """The checkout's commit, with + where files differ from it; empty outside git."""
    where = Path(__file__).parent
    try:
        run = [subprocess.run(["git", *args], cwd=where, capture_output=True, text=True, check=True)
               for args in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return run[0].stdout.strip() + ("+" if run[1].stdout.strip() else "")
