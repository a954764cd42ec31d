"""What the tests of the training loop share: a small corpus, a small run, runs of several ranks."""
import contextlib
import faulthandler
import functools
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import torch
from tqdm import tqdm

import prepare
import train
from runtime import SIGNALS

FLAGS = dict(dataset="tiny", max_docs=60, n_layer=2, n_embd=32, n_head=2, n_kv_head=1,
             block_size=64, total_batch_size=512, device_batch_size=4, max_steps=12, eval_every=5,
             eval_tokens=1000, log_every=1, save_every=1000, compile=False, dtype="float32",
             device="cpu")
CLOCK = {"dt", "tok_per_sec", "flops_per_sec", "seconds"}  # what differs between equal runs
# Forks of a process that has torch loaded start at once.
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["train"])


@functools.cache
def corpora():
    """A data_dir with two corpora, tiny and other: (folder)."""
    folder = tempfile.mkdtemp(prefix="tiny-")
    with contextlib.redirect_stdout(None):
        for seed, name in enumerate(("tiny", "other")):
            prepare.build("microsynth", data_dir=folder, name=name, docs=600, vocab_size=320,
                          seed=seed, workers=1)
    return Path(folder)


def argv(folder, **options):
    options = {**FLAGS, "data_dir": corpora(), "out_dir": folder, **options}
    return [f"--{key}={value}" for key, value in options.items()]


def run(folder, **options):
    """train.py in this process; its exit code."""
    return call(argv(folder, **options))


def call(arguments):
    """train.py in this process, after which signals work as before."""
    torch.set_num_threads(1)
    handlers = {n: signal.getsignal(n) for n in SIGNALS}
    try:
        return train.run(arguments)
    except SystemExit as error:
        return error.code
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # drops one that waits
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signal_at(owner, name, n=1, signals=(signal.SIGTERM,)):
    """The n-th call of owner.name from now on starts with signals to this process."""
    calls = []

    def wrapper(*args, **kwargs):
        calls.append(None)
        if len(calls) == n:
            for number in signals:
                os.kill(os.getpid(), number)
        return original(*args, **kwargs)

    original = getattr(owner, name)
    setattr(owner, name, wrapper)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _rank(env, arguments, out, hook):
    os.environ.update(env)
    with open(out, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    faulthandler.dump_traceback_later(45)  # says where a rank hangs
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # its own one counts as leaked when the process is killed
    if hook:
        hook(int(env.get("RANK", 0)))
    sys.exit(train.run(arguments))


def start(folder, world=1, hook=None, **options):
    """train.py in world forked processes; the processes. hook(rank) runs first in each."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    Path(folder).mkdir(parents=True, exist_ok=True)
    ranks = []
    for rank in range(world):
        env = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world, MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=port) if world > 1 else {}
        ranks.append(FORKS.Process(target=_rank, args=(
            {k: str(v) for k, v in env.items()}, argv(folder, **options),
            str(Path(folder) / f"rank{rank}.txt"), hook)))
        ranks[-1].start()
    return ranks


def wait(ranks, timeout=60):
    """Their exit codes; a rank that hangs fails the test."""
    end = time.monotonic() + timeout
    for rank in ranks:
        rank.join(max(0, end - time.monotonic()))
    hung = [rank for rank in ranks if rank.is_alive()]
    for rank in hung:
        rank.kill()
    assert not hung, "a rank hangs"
    return [rank.exitcode for rank in ranks]


def log(folder, event, clock=False):
    """The events of one kind, without what the clock says."""
    lines = [json.loads(line) for line in (Path(folder) / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if clock or k not in CLOCK}
            for line in lines if line["event"] == event]


def state(folder, name="ckpt.pt"):
    return torch.load(Path(folder) / name, weights_only=True)


def flat(nest, path=""):
    """Every leaf of nested dicts and lists by its path."""
    if isinstance(nest, (dict, list, tuple)):
        items = nest.items() if isinstance(nest, dict) else enumerate(nest)
        return {k: v for key, value in items for k, v in flat(value, f"{path}/{key}").items()}
    return {path: nest}


def assert_same_run(a, b):
    """Weights, every optimizer slot, position, and the log of every step are the same bits."""
    free = ("config", "world_size", "commit")
    one, two = (flat({k: v for k, v in state(f).items() if k not in free}) for f in (a, b))
    assert one.keys() == two.keys() and any("momentum_buffer" in k or "exp_avg" in k for k in one)
    for key in one:
        left, right = one[key], two[key]
        assert torch.equal(left, right) if torch.is_tensor(left) else left == right, key
    for event in ("train", "eval", "done"):
        assert log(a, event) == log(b, event)
    steps = [line["step"] for line in log(b, "train")]
    assert steps == list(range(state(a)["step"]))


def assert_close_runs(a, b, tolerance=1e-5):
    """The same rows and, to tolerance, losses and weights."""
    for one, two in zip(log(a, "train"), log(b, "train"), strict=True):
        assert one["batch_hash"] == two["batch_hash"] and one["n_scored"] == two["n_scored"]
        for key in ("train_loss", "z_loss", "grad_norm"):
            assert abs(one[key] - two[key]) < tolerance * max(1, abs(two[key])), key
    one, two = state(a)["model"], state(b)["model"]
    assert max((one[k] - two[k]).abs().max() for k in one) < tolerance


def copy(folder, to):
    shutil.copytree(folder, to)
    return to
