"""train.py: the schedule, the batches, the evaluation, and how a run ends."""
import random
import re

import numpy as np
import pytest
import tiny
import torch

import checkpoint
import prepare
import runtime
import train
from model import ModelConfig, Transformer


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight") / "run"
    assert tiny.run(folder) == 0
    return folder


# ---------------------------------------------------------------------------- schedule

def test_schedule_rises_stays_and_falls():
    draw = random.Random(0)
    for _ in range(200):
        total = draw.randint(1, 400)
        warmup, floor = draw.randint(0, total), draw.choice((0.0, 0.05, 0.5))
        decay = draw.randint(0, total - warmup)
        rates = [train.lr_scale(s, total, warmup, decay, floor) for s in range(total)]
        up, flat, down = rates[:warmup], rates[warmup:total - decay], rates[total - decay:]
        assert up == sorted(up) and set(flat) <= {1.0} and down == sorted(down, reverse=True)
        assert 0 < rates[0] and max(rates) <= 1 and (not warmup or rates[warmup - 1] == 1)
        if decay:
            assert rates[-1] == pytest.approx(floor) and down[0] > 1 - 2.5 * (1 - floor) / decay


def test_the_first_step_moves_the_weights(straight):
    first, _ = tiny.log(straight, "train")[:2]
    assert first["muon_lr"] == 0.02 and first["adam_lr"] == 2.4e-3  # a warm-up of one step
    start, later = (tiny.state(straight, f"ckpt_00000{i}.pt")["model"] for i in (0, 3))
    moved = {name for name in start if not torch.equal(start[name], later[name])}
    assert moved == set(start)
    fresh = Transformer(ModelConfig(**tiny.state(straight)["model_config"]), seed=42)
    assert all(torch.equal(p, start[n]) for n, p in fresh.named_parameters())


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_rate_of_zero_moves_nothing_and_gradients_are_cleared(tmp_path, monkeypatch, optimizer):
    seen, original = [], train.Muon.step

    def step(self):
        seen.append([p.grad.norm().item() for g in self.param_groups for p in g["params"]])
        return original(self)

    # One step's rows again and again.
    load = train.Batches.load
    monkeypatch.setattr(train.Batches, "load", lambda self, row: load(self, 0))
    monkeypatch.setattr(train.Muon, "step", step)
    assert tiny.run(tmp_path, muon_lr=0, adam_lr=0, weight_decay=0.1, max_steps=5, grad_clip=0,
                    optimizer=optimizer) == 0
    start, end = (tiny.state(tmp_path, f"ckpt_00000{i}.pt")["model"] for i in (0, 5))
    assert all(torch.equal(start[n], end[n]) for n in start)
    assert len(seen) == 5 and all(norms == seen[0] for norms in seen)


@pytest.mark.parametrize("shape", [dict(vocab_size=64), dict(vocab_size=9), dict(use_ffn=True)])
def test_muon_gets_the_block_matrices_by_role_whatever_their_shape(shape):
    model = Transformer(ModelConfig(**dict(vocab_size=320, n_layer=2, n_embd=64, n_head=2,
                                           n_kv_head=1) | shape))
    muon, adamw = train.make_optimizer(model, train.TrainConfig(weight_decay=0.3)).param_groups
    assert all(".c_" in name for name in muon["param_names"]) and muon["kind"] == "muon"
    assert not any(".c_" in name for name in adamw["param_names"]) and adamw["kind"] == "adamw"
    names = muon["param_names"] + adamw["param_names"]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert (muon["weight_decay"], adamw["weight_decay"]) == (0.3, 0)


# ---------------------------------------------------------------------------- batches

@pytest.mark.parametrize("rows, world, near", [
    (3, 1, "nearest that work: 384 or 576"), (4, 3, "x 3 ranks = 768; nearest that work: 768"),
    (4, 16, "x 16 ranks = 4096; nearest that work: 4096")])
def test_a_batch_that_does_not_divide_is_refused_with_what_would(rows, world, near):
    cfg = train.TrainConfig(total_batch_size=512, block_size=64, device_batch_size=rows)
    with pytest.raises(train.ConfigError, match=near):
        train.fit_batch(cfg, world)


@pytest.mark.parametrize("rows, world, fit", [(4, 1, 4), (4, 2, 4), (16, 1, 8), (16, 2, 4)])
def test_a_device_batch_is_at_most_what_a_rank_has_to_do(rows, world, fit):
    cfg = train.TrainConfig(total_batch_size=512, block_size=64, device_batch_size=rows)
    assert train.fit_batch(cfg, world) == train.replace(cfg, device_batch_size=fit)


def test_rows_are_shared_without_overlap_whatever_the_split(straight):
    data = prepare.Dataset(tiny.corpora() / "tiny")
    packing = prepare.Packing(data, data.split("train", 60), 64, 42)
    found = set()
    for world, micro in ((1, 12), (1, 4), (2, 3), (3, 4), (4, 1)):
        cfg = train.TrainConfig(total_batch_size=12 * 64, block_size=64, device_batch_size=micro)
        x, sums = [], np.zeros(3, int)
        for rank in range(world):
            ranks = runtime.Ranks()
            ranks.rank, ranks.world = rank, world
            batches = train.Batches(packing, cfg, ranks, torch.device("cpu"), 90)
            parts, *counts = batches.load(24)
            sums += counts
            x += [part[0] for part in parts]
        found.add((torch.cat(x).numpy().tobytes(), *sums))
    assert len(found) == 1


def test_one_process_two_processes_and_accumulation_agree(straight, tmp_path):
    """The same losses, gradient norms and weights; evaluation too, on any number of ranks."""
    assert tiny.run(tmp_path / "whole", device_batch_size=8) == 0
    assert tiny.run(tmp_path / "single", device_batch_size=1) == 0
    assert tiny.wait(tiny.start(tmp_path / "two", 2, device_batch_size=2)) == [0, 0]
    assert (tmp_path / "two" / "rank1.txt").read_text() == ""  # rank 0 alone speaks
    for name in ("whole", "single", "two"):
        tiny.assert_close_runs(straight, tmp_path / name)
        for a, b in zip(tiny.log(straight, "eval"), tiny.log(tmp_path / name, "eval"), strict=True):
            assert abs(a.pop("val_loss") - b.pop("val_loss")) < 1e-5 and a == b


def test_grad_norm_is_logged_before_clipping(tmp_path):
    runs = {clip: tmp_path / str(clip) for clip in (0.01, 0, 1e9)}
    for clip, folder in runs.items():
        assert tiny.run(folder, grad_clip=clip, max_steps=1, eval_every=0) == 0
    (tight,), (off,), (loose,) = (tiny.log(folder, "train") for folder in runs.values())
    assert tight["grad_norm"] == off["grad_norm"] == loose["grad_norm"]
    assert (tight["clipped"], off["clipped"], loose["clipped"]) == (True, False, False)
    # By hand: the mean over the scored tokens of the step, in one piece.
    state = tiny.state(runs[0], "ckpt_000000.pt")
    model = checkpoint.build_model(state)
    data = prepare.Dataset(tiny.corpora() / "tiny")
    rows = prepare.Packing(data, data.split("train", 60), 64, 42).read(range(8))
    x, y, cu = map(torch.from_numpy, prepare.make_batch(*rows, 40))
    nll, zsq = model(x, cu, y)
    n = int((y >= 0).sum())
    ((nll + 1e-4 * zsq) / n).backward()
    norm = sum(p.grad.double().square().sum() for p in model.parameters()).sqrt().item()
    assert off["grad_norm"] == pytest.approx(norm, rel=1e-5) and off["n_scored"] == n
    assert off["train_loss"] == pytest.approx(nll.item() / n, rel=1e-6)


# ---------------------------------------------------------------------------- evaluation, ends

def test_evaluation_never_changes_training(straight, tmp_path):
    for every, tokens in ((1, 64), (7, 100_000), (0, 1)):
        folder = tmp_path / str(every)
        assert tiny.run(folder, eval_every=every, eval_tokens=tokens) == 0
        one, two = tiny.state(straight), tiny.state(folder)
        assert all(torch.equal(one["model"][n], two["model"][n]) for n in one["model"])
        assert tiny.log(folder, "train") == tiny.log(straight, "train")
        assert [e["step"] for e in tiny.log(folder, "eval")] == {
            1: list(range(13)), 7: [0, 7, 12], 0: []}[every]


def test_evaluation_that_fails_at_the_end_loses_nothing(tmp_path, monkeypatch):
    calls = []

    def evaluate(*args):
        calls.append(None)
        if len(calls) == 3:  # after steps 0, 5 and 7
            raise MemoryError
        return 1.0, 1

    monkeypatch.setattr(train, "evaluate", evaluate)
    with pytest.raises(MemoryError):
        tiny.run(tmp_path, max_steps=7)
    assert tiny.state(tmp_path)["step"] == 7


@pytest.mark.parametrize("steps", [0, 3, 7])
def test_the_last_step_is_saved(tmp_path, steps):
    assert tiny.run(tmp_path, max_steps=steps, save_every=5, eval_every=0) == 0
    assert tiny.state(tmp_path)["step"] == steps
    (done,) = tiny.log(tmp_path, "done")
    assert done["val_loss"] is None and done["tokens"] == 512 * steps


def test_a_small_corpus_is_repeated_and_says_so(tmp_path, capsys):
    assert tiny.run(tmp_path, max_docs=12, max_steps=20, eval_every=0) == 0
    assert re.search(r"done: 10,240 tokens \((9|1\d)\.\d\d epochs\)", capsys.readouterr().out)
    epochs = [line["epoch"] for line in tiny.log(tmp_path, "train")]
    assert epochs == sorted(epochs) and epochs[0] == 0 and epochs[-1] >= 8
