"""What a run stands on: its ranks, its device and number format, the compiler, the commit.

Apart from train.py because none of it is about training: it changes with machines.
"""

import os
import platform
import subprocess
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from configurator import ConfigError, UserError


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
            # One rank may compile or save for long while the others wait.
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo",
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
            except UserError as error:
                box[1] = str(error)
        if self.world > 1:
            dist.broadcast_object_list(box)
        if box[1] is not None:
            raise UserError(box[1])
        return box[0]


def pick_device(cfg, ranks):
    """(device, activation dtype)."""
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
        fast = name == "cpu" and torch.cpu._is_amx_tile_supported()
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


def commit():
    """The checkout's commit, with + where files differ from it; empty outside git."""
    where = Path(__file__).parent
    try:
        run = [subprocess.run(["git", *args], cwd=where, capture_output=True, text=True, check=True)
               for args in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return run[0].stdout.strip() + ("+" if run[1].stdout.strip() else "")
