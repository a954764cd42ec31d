"""Checkpoints: written whole, read safely, compared before a run goes on from one.

    state = read("out/micro_san/ckpt.pt")     # a dict on the CPU, torch.load(weights_only=True)
    model = build_model(state)                # ready to evaluate

A file holds, and needs nothing of this repo to be read:
    format        1
    model         name -> float32 tensor, bare names: wte.weight (V, C), norm_f.weight (C),
                  blocks.<i>.norm_1.weight, blocks.<i>.attn.{c_q,c_k,c_v,c_proj}.weight (out, in),
                  blocks.<i>.attn.{q_norm,k_norm}.weight (D), blocks.<i>.gate_1 (), FFN arm besides:
                  norm_2, ffn.{c_gate,c_up,c_proj}, gate_2; sandwich: post_norm_1, post_norm_2
    optimizer     state_dict of muon.Muon
    model_config  the fields of ModelConfig;  config: those of TrainConfig
    step, row, tokens   updates done, next row of the data, tokens seen
    data, commit, world_size, rng, skipped (updates dropped as not finite)
The README's equations give the logits from model and model_config.
"""

import contextlib
import dataclasses
import errno
import os
import shutil
import zipfile
from pathlib import Path

import torch

from configurator import UserError
from model import ModelConfig, Transformer
from runtime import commit

# What may differ between a run and its continuation without changing the result.
FREE = {"out_dir", "data_dir", "partner", "resume", "branch", "overwrite", "verify_data", "compile",
        "compile_whole", "device", "device_batch_size", "eval_every", "eval_tokens", "log_every",
        "save_every", "keep_last", "nonfinite", "wandb_project"}  # fmt: skip
SHAPE = {f.name for f in dataclasses.fields(ModelConfig)} | {"optimizer"}


class CheckpointError(UserError):
    """A file that cannot be used, or a full disk; the message is one line."""


class NonFiniteError(CheckpointError):
    """A loss, gradient or weight that is NaN or infinite."""

    code = 1


def collect(t, data_id):
    """The dict of this file's first lines, of a train.Trainer."""
    return {
        "format": 1, "step": t.step, "row": t.row, "tokens": t.tokens, "skipped": t.skipped,
        "model": {n: p.detach().float() for n, p in t.model.named_parameters()},
        "optimizer": t.optimizer.state_dict(), "rng": torch.get_rng_state(), "data": data_id,
        "model_config": dataclasses.asdict(t.model.cfg), "config": dataclasses.asdict(t.cfg),
        "commit": commit(), "world_size": t.ranks.world,
    }  # fmt: skip


def restore(t, state):
    """Put a Trainer where a checkpoint was; its own rates and decay stay."""
    load_weights(t.model, state)
    groups = t.optimizer.param_groups
    own = [{k: v for k, v in g.items() if k not in ("params", "lr")} for g in groups]
    t.optimizer.load_state_dict(state["optimizer"])
    for group, settings in zip(t.optimizer.param_groups, own):
        group.update(settings)
    torch.set_rng_state(state["rng"])
    t.step, t.row, t.tokens = state["step"], state["row"], state["tokens"]
    t.skipped = state.get("skipped", 0)


def write(state, path):
    """Write state to path whole: a temporary file, fsync, rename. On a full disk the old file stays
    and CheckpointError names the bytes needed."""
    path = Path(path)
    temp = path.with_name(f".{path.name}.tmp")
    try:
        with open(temp, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
        sync_folder(path.parent)
    except (OSError, RuntimeError) as error:
        temp.unlink(missing_ok=True)
        need = size(state)
        free = shutil.disk_usage(path.parent).free
        cause = error
        while cause.__context__:  # torch, closing the broken archive, complains over the system
            cause = cause.__context__
        full = getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or free < need
        why = "the disk is full" if full else str(cause).splitlines()[0]
        raise CheckpointError(f"cannot write {path}: {why} ({need:,} bytes needed, {free:,} free); "
                              f"the checkpoint before it is untouched") from error


def sync_folder(folder):
    """Make a rename in folder last through a power cut, where the platform can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        with contextlib.suppress(OSError):  # some network file systems know no such thing
            os.fsync(handle)
        os.close(handle)


def size(state):
    """Bytes of all tensors in a nest of dicts and lists."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    items = state.values() if isinstance(state, dict) else state
    return sum(map(size, items)) if isinstance(state, (dict, list, tuple)) else 0


def save(state, folder, milestones, keep_last):
    """Write ckpt_<step>.pt, point ckpt.pt to it, then drop old ones that are no milestone."""
    folder = Path(folder)
    bad = [n for n, t in state["model"].items() if not torch.isfinite(t).all()]
    if bad:
        raise NonFiniteError(f"step {state['step']}: weight {bad[0]} is not finite ({len(bad)} "
                             f"such); nothing was written, the checkpoint before it is untouched")
    path = folder / f"ckpt_{state['step']:06d}.pt"
    write(state, path)
    link = folder / ".ckpt.pt.link"
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, link)
    os.replace(link, folder / "ckpt.pt")
    sync_folder(folder)
    # Later ones are there after a resume from an earlier step: no reason to drop this one.
    passing = [p for p in numbered(folder)
               if step_of(p) <= state["step"] and step_of(p) not in milestones]
    for old in passing[:-keep_last]:
        old.unlink()


def step_of(path):
    """The step in the name ckpt_<step>.pt."""
    return int(path.stem[5:])


def numbered(folder):
    """ckpt_<step>.pt of a run, oldest first."""
    return sorted((p for p in Path(folder).glob("ckpt_*.pt") if p.stem[5:].isdigit()), key=step_of)


def clear(folder, everything):
    """Drop what killed writes left; everything: of a run that is started again, its checkpoints."""
    folder = Path(folder)
    old = [p for pattern in (".ckpt*", "*.json*.tmp*") for p in folder.glob(pattern)]
    for path in old + (numbered(folder) + [folder / "ckpt.pt"] if everything else []):
        path.unlink(missing_ok=True)


def read(path, mmap=True):
    """The dict in path, on the CPU, names without wrapper prefixes. Raises CheckpointError.
    mmap: tensors stay in the file until they are used; it must not be replaced meanwhile."""
    if not Path(path).is_file():
        raise CheckpointError(f"no checkpoint {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():  # torch does not look at the checksums that it writes
                raise ValueError(f"wrong checksum of {damaged}")
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        fields = {f.name for f in dataclasses.fields(ModelConfig)}
        missing = {"format", "model", "model_config"} - set(state)
        missing |= fields - set(state.get("model_config", {}))
    except Exception as error:  # a cut or foreign file fails in many ways
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:100]
        raise CheckpointError(f"{path} is not a complete checkpoint: {reason}") from error
    if missing:
        raise CheckpointError(f"{path} is not a checkpoint of this program: it lacks "
                              f"{', '.join(sorted(missing))}")
    if state["format"] != 1:
        raise CheckpointError(f"{path} has format {state['format']!r}; this program reads 1")
    state["model"] = {bare(name): tensor for name, tensor in state["model"].items()}
    return state


def bare(name):
    """A parameter's name without what torch.compile and DDP put into it."""
    return ".".join(part for part in name.split(".") if part not in ("_orig_mod", "module"))


def newest(folder, say=print):
    """(path, dict) of a run's newest checkpoint that reads whole. Raises CheckpointError."""
    folder = Path(folder)
    candidates = [folder / "ckpt.pt", *reversed(numbered(folder))]
    for path in (p for p in candidates if p.is_file()):
        try:
            return path, read(path, mmap=False)
        except CheckpointError as error:
            say(f"{error}; trying the one before it")
    raise CheckpointError(f"{folder} holds no checkpoint to resume from")


def build_model(state, device="cpu"):
    """The Transformer of a checkpoint, in eval mode. Raises CheckpointError: what differs."""
    model = Transformer(ModelConfig(**state["model_config"]))
    load_weights(model, state)
    return model.to(device).eval()


def load_weights(model, state):
    """Copy a checkpoint's weights into model; names and shapes must agree."""
    own = model.state_dict()
    wrong = set(own) ^ set(state["model"])
    wrong |= {n for n in set(own) & set(state["model"]) if own[n].shape != state["model"][n].shape}
    if wrong:
        raise CheckpointError(f"weights do not fit the model: {', '.join(sorted(wrong)[:5])}"
                              f"{' ...' if len(wrong) > 5 else ''}")
    model.load_state_dict(state["model"])


def differences(old, new, free=FREE):
    """One text a setting that differs between two config dicts and is not free to."""
    keys = [k for k in new if k in old and k not in free]
    return [f"{k} {old[k]!r} -> {new[k]!r}" for k in keys if old[k] != new[k]]


def start_state(cfg, folder, data_id, say=print):
    """The checkpoint dict that the options ask to start from, or None for a fresh start.
    Raises CheckpointError where it belongs to another run, with old and new values."""
    if cfg.resume and cfg.branch:
        raise CheckpointError("give --resume or --branch, not both")
    if not cfg.resume and not cfg.overwrite and (numbered(folder) or (folder / "ckpt.pt").exists()):
        raise CheckpointError(f"{folder} holds a run; --resume goes on with it, --out_dir=... "
                              f"starts another, --overwrite starts this one again")
    if not cfg.resume and not cfg.branch:
        return None
    if cfg.resume == "newest":
        state = newest(folder, say)[1]
    else:
        state = read(cfg.resume or cfg.branch, mmap=False)
    if lost := {"optimizer", "config", "data", "step", "row", "tokens", "rng"} - set(state):
        raise CheckpointError(f"training cannot go on from a checkpoint without "
                              f"{', '.join(sorted(lost))}")
    old, new = state["config"], dataclasses.asdict(cfg)
    if cfg.branch and cfg.warmup_steps < 0:  # a longer run must not fall back into its warm-up
        new["warmup_steps"] = old["warmup_steps"]
    changed = differences(old, new)
    if state["data"] != data_id:
        changed.append(f"corpus {state['data']} -> {data_id}")
    keys = {c.split()[0] for c in changed}
    if keys & SHAPE:
        fixed = [c for c in changed if c.split()[0] in SHAPE]
        raise CheckpointError(f"the checkpoint's model is another one: {'; '.join(fixed)}")
    if changed and cfg.resume:
        raise CheckpointError(f"this would not continue the same run: {'; '.join(changed)}; set "
                              f"them back, or start a new run with --branch=CKPT and an --out_dir")
    if state["step"] > cfg.max_steps:
        raise CheckpointError(f"the checkpoint is at step {state['step']}, after max_steps "
                              f"{cfg.max_steps}")
    if keys & {"max_steps", "decay_steps"} and state["step"] > cfg.max_steps - cfg.decay_steps:
        raise CheckpointError(f"{cfg.decay_steps} decay_steps before max_steps {cfg.max_steps} "
                              f"begin before the checkpoint's step {state['step']}: the rate would "
                              f"jump")
    if keys & {"corpus", "seed", "max_docs"}:
        state["row"] = 0
        say("branch: other rows than the checkpoint's run, read from their beginning")
    state["changed"] = changed
    return state
