"""Stopped and continued runs: the same bits, the same rows, or a refusal."""
import os
import re
import signal
import weakref

import pytest
import stress
import tiny
import torch

import checkpoint
import train

OPTIMIZERS = [dict(optimizer="muon", muon_order="momentum_first"),
              dict(optimizer="muon", muon_order="orthogonalize_first", dtype="bfloat16"),
              dict(optimizer="adamw", use_ffn=True)]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A finished run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    assert tiny.run(folder, save_every=5) == 0
    return folder


@pytest.mark.parametrize("options", OPTIMIZERS)
def test_stops_and_restarts_change_no_bit(tmp_path, options):
    options = dict(options, max_docs=40, max_steps=16, decay_steps=6)  # 3 epochs
    assert tiny.run(tmp_path / "a", **options) == 0
    for i, steps in enumerate((4, 5, 1, 3)):
        with tiny.signal_at(train.Trainer, "update", steps):
            resume = "newest" if i else ""
            assert tiny.run(tmp_path / "b", resume=resume, **options) == train.STOPPED
    assert tiny.run(tmp_path / "b", resume="newest", **options) == 0
    tiny.assert_same_run(tmp_path / "a", tmp_path / "b")
    lines = tiny.log(tmp_path / "b", "train")
    assert [e["step"] for e in tiny.log(tmp_path / "b", "resume")] == [4, 9, 10, 13]
    assert lines[-1]["epoch"] >= 2 and lines[-1]["adam_lr"] == pytest.approx(0.05 * 2.4e-3)


# Each place: what is called, and which call of a run of 12 steps of 2 micro-steps.
PLACES = {"before a micro-step": (train.Batches, "to_device", 8),
          "between micro-steps": (train.Batches, "to_device", 9),
          "in the optimizer": (train.Muon, "step", 4),
          "in an evaluation": (train, "evaluate", 2),
          "in the last evaluation": (train, "evaluate", 4),
          "in a save": (checkpoint, "write", 3),
          "in the last save": (checkpoint, "write", 5),
          "at the first forward pass": (train.Transformer, "forward", 1)}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGTERM)])
def test_a_signal_anywhere_leaves_an_exact_checkpoint(straight, tmp_path, place, signals):
    with tiny.signal_at(*PLACES[place], signals):
        assert tiny.run(tmp_path / "b", save_every=5) == train.STOPPED
    assert tiny.run(tmp_path / "b", resume="newest", save_every=5) == 0
    tiny.assert_same_run(straight, tmp_path / "b")


def test_a_signal_before_the_first_step_ends_the_program(tmp_path):
    with tiny.signal_at(train, "make_optimizer"):
        assert tiny.run(tmp_path / "b") == train.STOPPED
    assert not (tmp_path / "b" / "ckpt.pt").exists()


def signal_rank_1(rank):
    if rank == 1:
        original = train.Trainer.update

        def update(self, *args):
            if self.step == 7:
                os.kill(os.getpid(), signal.SIGTERM)
            return original(self, *args)

        train.Trainer.update = update


def test_one_two_one_processes_see_the_same_batches(straight, tmp_path):
    """And a signal on rank 1 alone stops both after the same step."""
    folder = tmp_path / "b"
    with tiny.signal_at(train.Trainer, "update", 4):
        assert tiny.run(folder) == train.STOPPED
    assert tiny.wait(tiny.start(folder, 2, signal_rank_1, resume="newest")) == [train.STOPPED] * 2
    assert tiny.state(folder)["world_size"] == 2 and tiny.state(folder)["step"] == 8
    assert tiny.run(folder, resume="newest", device_batch_size=2) == 0
    assert [e["world_size"] for e in tiny.log(folder, "resume")] == [2, 1]
    tiny.assert_close_runs(straight, folder)


@pytest.mark.parametrize("options, message", [
    (dict(n_layer=3), "n_layer 2 -> 3"), (dict(vocab_size=600), "vocab_size 320 -> 600"),
    (dict(residual="standard"), "residual 'gated' -> 'standard'"),
    (dict(optimizer="adamw"), "optimizer 'muon' -> 'adamw'"),
    (dict(n_embd=64, n_head=4), "n_embd 32 -> 64; n_head 2 -> 4"), (dict(seed=1), "seed 42 -> 1"),
    (dict(max_steps=20), "max_steps 12 -> 20; warmup_steps 1 -> 1|max_steps 12 -> 20"),
    (dict(muon_lr=0.1), "muon_lr 0.02 -> 0.1"), (dict(max_docs=50), "max_docs 60 -> 50"),
    (dict(total_batch_size=1024), "total_batch_size 512 -> 1024"),
    (dict(dataset="other"), "corpus {'name': 'tiny', .* -> {'name': 'other'"),
    (dict(dtype="bfloat16"), "dtype 'float32' -> 'bfloat16'"), (dict(branch="x"), "not both")])
def test_what_would_change_the_result_is_refused_with_both_values(straight, options, message,
                                                                  capsys):
    before = {p.name: p.read_bytes() for p in straight.iterdir()}
    assert tiny.run(straight, resume="newest", save_every=5, **options) == 2
    error = capsys.readouterr().err
    assert re.search(message, error) and error.count("\n") == 1
    assert before == {p.name: p.read_bytes() for p in straight.iterdir()}


def test_a_folder_that_holds_a_run_is_not_written_over(straight, capsys, tmp_path):
    assert tiny.run(straight) == 2
    assert tiny.run(straight, branch=straight / "ckpt_000006.pt") == 2
    assert capsys.readouterr().err.count("holds a run") == 2
    assert tiny.run(tmp_path, resume="newest") == 2
    assert "no checkpoint to resume from" in capsys.readouterr().err
    tiny.copy(straight, tmp_path / "b")
    assert tiny.run(tmp_path / "b", overwrite=True, max_steps=2) == 0
    assert [p.name for p in checkpoint.numbered(tmp_path / "b")] == [
        f"ckpt_00000{i}.pt" for i in range(3)]


def test_resume_from_an_older_checkpoint_takes_the_log_back(straight, tmp_path):
    tiny.copy(straight, tmp_path / "b")
    with tiny.signal_at(train.Trainer, "update", 2):
        older = tmp_path / "b" / "ckpt_000003.pt"
        assert tiny.run(tmp_path / "b", resume=older) == train.STOPPED
    assert tiny.state(tmp_path / "b")["step"] == 5  # not the newer files of the first time
    assert tiny.run(tmp_path / "b", resume="newest", keep_last=2) == 0
    tiny.assert_same_run(straight, tmp_path / "b")


def test_a_broken_newest_file_falls_back(straight, tmp_path, capsys):
    folder = tiny.copy(straight, tmp_path / "b")
    data = (folder / "ckpt.pt").read_bytes()
    (folder / "ckpt.pt").write_bytes(data[:len(data) // 2])
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1  # a checksum finds what torch.load does not
    (folder / "ckpt_000012.pt").write_bytes(flipped)
    assert tiny.run(folder, resume="newest", save_every=5) == 0
    assert "ckpt.pt is not a complete" in (out := capsys.readouterr().out)
    assert "ckpt_000012.pt is not a complete checkpoint: wrong checksum" in out
    tiny.assert_same_run(straight, folder)


def test_a_resume_reads_to_the_cpu_and_lets_go(straight, tmp_path, monkeypatch):
    seen, original = [], torch.load

    class Weak(dict):
        pass

    def load(*args, **kwargs):
        assert kwargs["map_location"] == "cpu" and kwargs["weights_only"]
        state = Weak(original(*args, **kwargs))
        seen.append(weakref.ref(state))
        return state

    def update(self, *args):
        assert seen and seen[0]() is None
        raise checkpoint.CheckpointError("seen")

    monkeypatch.setattr(torch, "load", load)
    monkeypatch.setattr(train.Trainer, "update", update)
    folder = tiny.copy(straight, tmp_path / "b")
    assert tiny.run(folder, resume=folder / "ckpt_000003.pt") == 2


def test_a_few_random_kills_change_no_bit():
    """The short form of tests/stress.py."""
    kills, _, lost = stress.stress(3, say=lambda text: None)
    assert kills == 3 and max(lost) <= stress.OPTIONS["save_every"]
