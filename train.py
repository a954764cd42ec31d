"""Train one arm.

    python train.py config/micro_san.py                                  # a laptop, minutes
    python train.py config/san_param.py --device_batch_size=64           # one GPU
    torchrun --standalone --nproc_per_node=8 train.py config/san_param.py

Reads data/<dataset>/ (prepare.py; an embedded corpus that is missing is written first).
Writes out/<run>/: run.json before the first step, log.jsonl one JSON object per event, ckpt.pt and
ckpt_<step>.pt. --resume continues a run to the same bits, --branch=CKPT starts another from it.
Exit codes: 0 done, 1 a value that is not finite, 2 a mistake in the input or a full disk, 75
stopped by SIGTERM or SIGINT, the last complete step saved (torchrun makes 1 of any but 0).
Source of the objective and the schedule: arXiv:2607.18363, section 2.
"""

import gc
import hashlib
import json
import math
import shlex
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import checkpoint
import prepare
from configurator import ConfigError, fail, load, model_fields
from model import ModelConfig, Transformer, flops_by_convention, flops_per_token, num_params
from muon import ORDERS, Muon
from runtime import (MISTAKES, STOPPED, Log, Ranks, Stop, Watch, compile_model, machine,
                     open_data, peak_flops, pick_device)


@dataclass(frozen=True)
class TrainConfig:
    """Options of train.py: python train.py [config.py ...] [--key=value ...]"""

    # run
    out_dir: str = ""  # the run's own folder; empty: out/<config name>
    partner: str = ""  # config of the run that this one is compared with
    resume: str = ""  # "newest" (what a bare --resume means) or a checkpoint of this run
    branch: str = ""  # a checkpoint to start from with other settings or data; the model stays
    overwrite: bool = False  # start again in a folder that holds a run
    seed: int = 42  # of the weights and of the order of the data

    # data
    dataset: str = "microsynth"  # folder in data_dir; microsynth and microweb are made when missing
    data_dir: str = "data"
    max_docs: int = 0  # unique training documents, a fixed subset; 0: all
    verify_data: bool = False  # hash the corpus before the first step

    # model, see ModelConfig
    vocab_size: int = 0  # 0: the corpus's
    block_size: int = 2048  # tokens per row
    n_layer: int = 20
    n_embd: int = 512
    n_head: int = 8
    n_kv_head: int = 4
    use_ffn: bool = False  # the arm: attention only, or attention and SwiGLU
    n_inner: int = 0  # SwiGLU width; 0: 4 * n_embd
    residual: str = "gated"  # gated | rezero | standard | none
    norm: str = "zcrms"  # zcrms | rms
    qk_norm: bool = True
    post_norm: bool = False  # sandwich
    rope_theta: float = 10000.0

    # batch
    total_batch_size: int = 1048576  # tokens per optimizer step, over all devices
    device_batch_size: int = 32  # rows per device and micro-step at most: a matter of memory only

    # optimizer: absolute peak rates, the same on any number of devices
    optimizer: str = "muon"  # muon (AdamW on what is not a block matrix) | adamw (everything)
    muon_lr: float = 0.02
    muon_order: str = "momentum_first"  # or orthogonalize_first, as the study's own numbers
    adam_lr: float = 2.4e-3
    weight_decay: float = 0.01  # decoupled, on block matrices only
    grad_clip: float = 1.0  # global norm; 0: off
    z_loss: float = 1e-4  # weight of logsumexp^2
    nonfinite: str = "stop"  # or skip: drop the step's update and count it

    # schedule: linear warm-up, constant, cosine to 5 %
    max_steps: int = 100000
    warmup_steps: int = -1  # -1: 5 % of max_steps
    decay_steps: int = -1  # -1: 15 % of max_steps

    # evaluation, logging, saving, in steps; 0: never
    eval_every: int = 1000
    eval_tokens: int = 4194304  # held-out tokens per evaluation, the same rows every time
    log_every: int = 10
    save_every: int = 1000  # milestones at 0, 25, 50, 75, 100 % are kept besides
    wandb_project: str = ""  # log to this Weights & Biases project as well; empty: off
    keep_last: int = 1  # newest checkpoints kept, milestones not counted

    # machine
    device: str = "auto"  # auto | cpu | cuda | mps
    dtype: str = "auto"  # of activations: auto | bfloat16 | float32; weights are float32
    compile: bool = True  # block by block; eager, with one line, where it cannot be
    compile_whole: bool = False  # one graph for the whole model: slow to start

    def __post_init__(self):
        positive = ("total_batch_size", "device_batch_size", "keep_last", "eval_tokens")
        for key in positive + (
            "max_steps", "max_docs", "eval_every", "log_every", "save_every", "vocab_size",
            "muon_lr", "adam_lr", "weight_decay", "grad_clip", "z_loss",
        ):  # fmt: skip
            value, low = getattr(self, key), int(key in positive)
            if not low <= value < math.inf:
                raise ConfigError(f"{key} is {value}; it must be finite and at least {low}")
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}; it must fit 64 bits")
        for key, choices in (
            ("optimizer", ("muon", "adamw")),
            ("muon_order", ORDERS),
            ("nonfinite", ("stop", "skip")),
            ("device", ("auto", "cpu", "cuda", "mps")),
            ("dtype", ("auto", "bfloat16", "float32")),
        ):
            if getattr(self, key) not in choices:
                raise ConfigError(f"{key} is {getattr(self, key)!r}; choose {', '.join(choices)}")
        if self.warmup + self.decay > self.max_steps > 0:
            raise ConfigError(f"warmup_steps {self.warmup} + decay_steps {self.decay} are more "
                              f"than max_steps {self.max_steps}")

    @property
    def warmup(self):
        return round(0.05 * self.max_steps) if self.warmup_steps < 0 else self.warmup_steps

    @property
    def decay(self):
        return round(0.15 * self.max_steps) if self.decay_steps < 0 else self.decay_steps

    @property
    def rows_per_step(self):
        return self.total_batch_size // self.block_size


def fit_batch(cfg, world):
    """cfg with device_batch_size lowered to a rank's rows of a step where it is more. Raises
    ConfigError unless rows divide over steps, ranks and micro-steps."""
    share, left = divmod(cfg.total_batch_size, cfg.block_size * world)
    if not left and share:
        cfg = replace(cfg, device_batch_size=min(cfg.device_batch_size, share))
    unit = cfg.block_size * cfg.device_batch_size * world
    if cfg.total_batch_size % unit:
        below = cfg.total_batch_size // unit * unit
        near = " or ".join(str(n) for n in (below, below + unit) if n)
        raise ConfigError(
            f"total_batch_size {cfg.total_batch_size} is not a multiple of block_size "
            f"{cfg.block_size} x device_batch_size {cfg.device_batch_size} x {world} ranks = "
            f"{unit}; nearest that work: {near}")
    return cfg


# -----------------------------------------------------------------------------
# Schedule and optimizer


def lr_scale(step, max_steps, warmup, decay, floor=0.05):
    """Factor on every peak rate at step 0 .. max_steps - 1: WSD. The first step's is above 0, the
    warm-up's last is 1, the last step's is floor. Source: section 2."""
    if step < warmup:
        return (step + 1) / warmup
    into_decay = step - (max_steps - decay) + 1
    if into_decay <= 0:
        return 1.0
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, into_decay / decay)))


def make_optimizer(model, cfg):
    """Muon or AdamW on the block matrices, AdamW on the rest; decay on the matrices in both.
    Muon iterates in the activations' dtype: float32 runs agree over ranks far beyond bfloat16."""
    matrices = [(n, p) for role, n, p in model.roles() if role == "matrix"]
    others = [(n, p) for role, n, p in model.roles() if role != "matrix"]
    first = {"params": matrices, "weight_decay": cfg.weight_decay}
    if cfg.optimizer == "muon":
        first |= {"kind": "muon", "lr": cfg.muon_lr, "order": cfg.muon_order}
    else:
        first |= {"kind": "adamw", "lr": cfg.adam_lr}
    groups = [first, {"kind": "adamw", "params": others, "lr": cfg.adam_lr}]
    return Muon([g | {"initial_lr": g["lr"]} for g in groups], ns_dtype=model.compute_dtype)


# -----------------------------------------------------------------------------
# Batches


class Batches:
    """This rank's micro-batches of any step, and what the log says of the whole step's rows."""

    def __init__(self, packing, cfg, ranks, device, doc_len):
        self.packing, self.device = packing, device
        self.n_rows, self.n_micro = cfg.rows_per_step, cfg.device_batch_size
        share = self.n_rows // ranks.world
        self.mine = np.arange(ranks.rank * share, (ranks.rank + 1) * share)
        # Twice the mean and some: a batch with more documents takes the next multiple.
        self.cu_len = self.n_micro * (2 * math.ceil(cfg.block_size / doc_len) + 8)

    def load(self, row):
        """The step whose first row is row: (micro-batches on the host, n_scored, digest, pairs).
        digest is a sum over rows, so ranks add up to the same number however rows are shared."""
        micro, n_scored, digest, pairs = [], 0, 0, 0
        for part in self.mine.reshape(-1, self.n_micro):
            tokens, docs = self.packing.read(row + part)
            x, y, cu = prepare.make_batch(tokens, docs, self.cu_len)
            for i, ids in zip(part, tokens):
                seal = hashlib.blake2b(ids.tobytes(), digest_size=8, key=str(i).encode()).digest()
                digest += int.from_bytes(seal, "little") >> 24  # 40 bits: sums stay in int64
            lengths = np.diff(cu).astype(np.int64)
            n_scored += int((y >= 0).sum())
            pairs += int((lengths * (lengths + 1)).sum()) // 2
            micro.append([torch.from_numpy(a) for a in (x, y, cu)])
            if self.device.type == "cuda":  # here, in the loader's thread, pinning costs no step
                micro[-1] = [t.pin_memory() for t in micro[-1]]
        return micro, n_scored, digest, pairs

    def to_device(self, micro):
        return [t.to(self.device, non_blocking=True) for t in micro]


@torch.no_grad()
def evaluate(model, packing, cfg, ranks, device, cu_len, stop):
    """(val_loss in nats per token, tokens scored) on the first eval_tokens of the held-out rows:
    the same number for any batch size and number of ranks. None if a signal came on any rank."""
    n_rows = min(max(1, cfg.eval_tokens // cfg.block_size), packing.rows_per_epoch)
    mine = np.arange(ranks.rank, n_rows, ranks.world)
    nll, count = 0.0, 0
    for start in range(0, len(mine), cfg.device_batch_size):
        if stop:
            break
        rows = mine[start : start + cfg.device_batch_size]
        # The last batch is filled up with rows that are not scored: no new shape to compile.
        tokens, docs = packing.read(np.resize(rows, cfg.device_batch_size))
        x, y, cu = prepare.make_batch(tokens, docs, cu_len)
        y[len(rows) :] = -1
        x, y, cu = (torch.from_numpy(a).to(device) for a in (x, y, cu))
        nll += model(x, cu, y)[0].item()
        count += int((y >= 0).sum())
    nll, count, stopped = ranks.sum([nll, count, bool(stop)], device, torch.float64)
    return None if stopped else (nll / count, int(count))


# -----------------------------------------------------------------------------
# Main


class Trainer:
    """Model, optimizer and position of one run, on one rank."""

    def __init__(self, cfg, model_cfg, ranks, device, dtype):
        self.cfg, self.ranks, self.device = cfg, ranks, device
        torch.manual_seed(cfg.seed)
        self.model = Transformer(model_cfg, seed=cfg.seed).to(device)
        self.model.compute_dtype = dtype
        self.optimizer = make_optimizer(self.model, cfg)
        self.step, self.row, self.tokens, self.skipped, self.saved = 0, 0, 0, 0, -1
        self.milestones = {round(cfg.max_steps * i / 4) for i in range(5)}

    def save(self, folder, data_id, log=None):
        """A checkpoint of this step, unless there is one."""
        if self.saved != self.step:
            if log:
                log.sync()
            self.ranks.from_main(lambda: checkpoint.save(
                checkpoint.collect(self, data_id), folder, self.milestones, self.cfg.keep_last))
            if log:
                log.write("save", self.step, path=f"ckpt_{self.step:06d}.pt")
            self.saved = self.step

    def wrap(self, say):
        """Compile, then DDP: each block's gradients are sent while the next is computed."""
        if self.cfg.compile:
            compile_model(self.model, self.cfg, self.device, say)
        self.net = self.model
        if self.ranks.world > 1:
            ids = [self.device.index] if self.device.type == "cuda" else None
            self.net = DistributedDataParallel(
                self.model, device_ids=ids, gradient_as_bucket_view=True)
            # They never change. As an argument it has another name from torch 2.13 on.
            self.net.broadcast_buffers = False

    def update(self, batches, micro, n_scored):
        """One optimizer step. Returns what the log says of it. n_scored: over all ranks."""
        cfg = self.cfg
        scale = lr_scale(self.step, cfg.max_steps, cfg.warmup, cfg.decay)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * scale
        sums = torch.zeros(2, device=self.device)
        for i, part in enumerate(micro):
            x, y, cu = batches.to_device(part)
            # DDP reads this in forward as well as in backward.
            self.net.require_backward_grad_sync = i == len(micro) - 1
            nll, zsq = self.net(x, cu, y)
            # DDP takes the mean over ranks; the objective is the mean over scored tokens.
            ((nll + cfg.z_loss * zsq) * (self.ranks.world / n_scored)).backward()
            sums += torch.stack((nll, zsq)).detach()
        nll, zsq = self.ranks.sum(sums.tolist(), self.device, torch.float64)
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads, foreach=True).item()
        finite = math.isfinite(nll) and math.isfinite(norm)
        if finite:
            if cfg.grad_clip and norm > cfg.grad_clip:
                torch._foreach_mul_(grads, cfg.grad_clip / norm)
            self.optimizer.step()
        bad = None if finite else self.first_bad()
        self.optimizer.zero_grad(set_to_none=True)
        skip = not finite and cfg.nonfinite == "skip"
        self.skipped += skip
        self.step += finite or skip
        return {"train_loss": nll / n_scored, "z_loss": zsq / n_scored, "grad_norm": norm,
                "clipped": bool(cfg.grad_clip and norm > cfg.grad_clip), "bad": bad,
                "adam_lr": self.optimizer.param_groups[-1]["lr"],
                "muon_lr": self.optimizer.param_groups[0]["lr"]}

    def first_bad(self):
        """The first parameter whose gradient is not finite; empty: only the loss or norm is not."""
        grads = ((n, p.grad) for n, p in self.model.named_parameters() if p.grad is not None)
        return next((n for n, g in grads if not torch.isfinite(g).all()), "")

    def gates(self):
        """sigmoid(g), or alpha, of each sublayer."""
        gates = [p.detach() for role, _, p in self.model.roles() if role == "gate"]
        values = torch.stack(gates) if gates else torch.empty(0)
        values = values.sigmoid() if self.cfg.residual == "gated" else values
        return [round(v, 6) for v in values.tolist()]


def describe_run(t, cfg, name, argv, data, say):
    """What run.json keeps, and the header on the console."""
    total, inside = num_params(t.model.cfg)
    flops = flops_by_convention(t.model.cfg, data.n_tokens / data.n_docs)
    say(f"{name or 'run'}: {'FFN' if cfg.use_ffn else 'SAN'} arm, {cfg.n_layer} layers, "
        f"{total:,} parameters ({inside:,} without the embedding)")
    say(f"data {data.name}: {data.n_docs:,} documents, {data.n_tokens:,} tokens, vocabulary "
        f"{data.vocab_size}" + ("" if data.vocab_size == cfg.vocab_size else
                                f" of {cfg.vocab_size} ids, the rest are never used"))
    say(f"{t.ranks.world} x {t.device.type} ({machine(t.device)['device']}), {cfg.dtype}, "
        f"{cfg.max_steps} steps of {cfg.total_batch_size:,} tokens, "
        f"{flops['document'] / 1e6:.2f} MFLOP per token (document convention)")
    for group, what in zip(t.optimizer.param_groups, ("block matrices", "embedding, gains, gates")):
        n = sum(p.numel() for p in group["params"])
        say(f"{group['kind']}: {len(group['params'])} {what}, {n:,} parameters, rate "
            f"{group['initial_lr']:g}, decay {group['weight_decay']:g}")
    return {"name": name, "config": asdict(cfg), "model": asdict(t.model.cfg), "seed": cfg.seed,
            "seeds": "weights and data order both from seed, the same on every rank",
            "params": total, "params_non_embedding": inside, "flops_per_token": flops,
            "command": shlex.join(["python", "train.py", *argv]), "dtype": cfg.dtype,
            "world_size": t.ranks.world, "data": data.meta, **machine(t.device)}


def main(argv, stop):
    """Train; returns the exit code. stop: true once a signal came."""
    ranks = Ranks()
    cfg, name = load(TrainConfig, argv, bare={"resume": "newest"})
    device, dtype = pick_device(cfg, ranks)
    ranks.start(device)
    cfg = fit_batch(cfg, ranks.world)
    data = open_data(cfg, ranks)
    # What auto and -1 come to is kept with the run, so that a resume elsewhere means the same.
    cfg = replace(cfg, vocab_size=cfg.vocab_size or data.vocab_size, decay_steps=cfg.decay,
                  warmup_steps=cfg.warmup_steps if cfg.branch else cfg.warmup,
                  dtype=str(dtype).removeprefix("torch."))
    if data.vocab_size > cfg.vocab_size:
        raise ConfigError(f"data {data.name} has {data.vocab_size} token ids, vocab_size is only "
                          f"{cfg.vocab_size}; leave vocab_size out to take the corpus's")
    try:
        model_cfg = ModelConfig(**model_fields(cfg, ModelConfig))
    except ValueError as error:
        raise ConfigError(error) from error
    packing = prepare.Packing(data, data.split("train", cfg.max_docs), cfg.block_size, cfg.seed)
    if cfg.eval_every:
        val = prepare.Packing(data, data.split("val"), cfg.block_size, None)

    folder = Path(cfg.out_dir or Path("out") / (name or "run"))
    data_id = {"name": data.name, "sha256": data.meta["files"]["tokens.bin"]["sha256"]}
    state = ranks.from_main(lambda: checkpoint.start_state(cfg, folder, data_id))
    if cfg.warmup_steps < 0:
        cfg = replace(cfg, warmup_steps=state["config"]["warmup_steps"])
    t = Trainer(cfg, model_cfg, ranks, device, dtype)
    start = "branch" if cfg.branch else "resume" if cfg.resume else ""
    if start:
        checkpoint.restore(t, state)
        changed = state["changed"]
        del state  # its copy of the weights must not live beside the run
    if ranks.main:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.clear(folder, everything=not cfg.resume)
    if start:
        # Whichever file this came from, ckpt.pt is it before the log is cut to its step.
        t.save(folder, data_id)
    log = Log(folder, ranks.main, t.step if cfg.resume else None)
    about = describe_run(t, cfg, name, argv, data, log.say)
    if ranks.main and not (cfg.resume and (folder / "run.json").exists()):
        prepare.write_whole(folder / "run.json", json.dumps(about, indent=1).encode())
    if start:
        log.write(start, t.step, world_size=ranks.world, changed=changed)
        log.write("save", t.step, path=f"ckpt_{t.step:06d}.pt")
        log.say(f"{start}: from step {t.step}" + "".join(f"; {c}" for c in changed))
    stop.wait()
    if ranks.main and cfg.wandb_project:
        log.watch = Watch(cfg.wandb_project, name, folder, log.say)
    t.wrap(log.say)
    batches = Batches(packing, cfg, ranks, device, data.n_tokens / data.n_docs)
    peak, began = peak_flops(device), time.perf_counter()
    speeds, val_loss, finished = [], None, False

    def due(every):
        return every and t.step % every == 0

    with (ThreadPoolExecutor(1) as ahead, tqdm(total=cfg.max_steps, initial=t.step, unit="step",
                                               disable=None if ranks.main else True) as bar):
        following = ahead.submit(batches.load, t.row)
        while True:
            last = t.step >= cfg.max_steps
            if last or t.step in t.milestones or due(cfg.save_every):
                t.save(folder, data_id, log)
            if cfg.eval_every and (last or due(cfg.eval_every)):
                found = evaluate(t.model, val, cfg, ranks, device, batches.cu_len, stop)
                if not found:
                    break
                val_loss = found[0]
                log.write("eval", t.step, tokens=t.tokens, val_loss=val_loss, n_scored=found[1])
                log.say(f"step {t.step}: val_loss {val_loss:.4f} nats per token")
            if finished := last:
                break
            clock = time.perf_counter()
            micro, *counts = following.result()
            following = ahead.submit(batches.load, t.row + cfg.rows_per_step)
            n_scored, digest, pairs, stopping = ranks.sum([*counts, bool(stop)], device)
            if stopping:
                break
            step = t.step
            line = t.update(batches, micro, n_scored)
            bad = line.pop("bad")
            if bad is not None:
                what = f"the gradient of {bad}" if bad else "the loss or the norm of the gradient"
                log.write("nonfinite", step, parameter=bad, train_loss=str(line["train_loss"]),
                          skipped=t.skipped)
                if cfg.nonfinite == "stop":
                    t.save(folder, data_id, log)
                    raise checkpoint.NonFiniteError(
                        f"step {step}: {what} is not finite; stopped before the update, {folder}/"
                        f"ckpt.pt is of step {step}. A lower rate or --nonfinite=skip may help")
                log.say(f"step {step}: {what} is not finite, skipped ({t.skipped} so far)")
            t.row += cfg.rows_per_step
            t.tokens += cfg.total_batch_size
            if device.type == "cuda":
                torch.cuda.synchronize()  # kernels are queued: without it the clock stops too early
            dt = time.perf_counter() - clock
            rate = cfg.total_batch_size / dt
            flops = rate * flops_per_token(t.model.cfg, pairs / cfg.total_batch_size)
            speeds.append(rate)
            bar.update()
            if (due(cfg.log_every) or t.step == cfg.max_steps) and bad is None:
                bar.set_postfix_str(f"loss {line['train_loss']:.4f}, {rate:,.0f} tok/s")
                log.write("train", step, tokens=t.tokens, epoch=packing.epoch(t.row - 1), **line,
                          dt=dt, tok_per_sec=rate, flops_per_sec=flops,
                          mfu=flops / (peak * ranks.world) if peak else None,
                          mfu_convention="document", batch_hash=f"{digest:x}", n_scored=n_scored,
                          gates=t.gates())
    if not finished:
        t.save(folder, data_id, log)
        log.say(f"stopped by a signal at step {t.step}, saved; --resume goes on")
        log.close()
        return STOPPED
    speed = statistics.median(speeds[10:] or speeds) if speeds else 0.0
    took = time.perf_counter() - began
    epochs = t.row / packing.rows_per_epoch
    log.write("done", t.step, tokens=t.tokens, val_loss=val_loss, tok_per_sec=speed, seconds=took,
              epochs=epochs, skipped=t.skipped)
    log.say(f"done: {t.tokens:,} tokens ({epochs:.2f} epochs), " +
            (f"val_loss {val_loss:.4f} nats per token, " if val_loss is not None else "") +
            f"{speed:,.0f} tokens/s, {took / 60:.1f} minutes")
    log.say(f"next: python analyze.py {folder}/ckpt.pt")
    log.close()
    return 0


def run(argv):
    """main() under the signal handlers; a user's mistake ends in one line."""
    try:
        return main(argv, Stop())
    except MISTAKES as error:
        mistake = error.with_traceback(None)
        mistake.__cause__ = mistake.__context__ = None
    finally:
        # measured: 1 run of 100 hung at its end when a model in DDP, which the error's frames hold,
        # outlived the process group.
        gc.collect()
        if dist.is_initialized():
            dist.destroy_process_group()
    fail(mistake)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
