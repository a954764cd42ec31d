"""checkpoint.py: files are whole or not there, load safely, and are kept by rule."""
import builtins
import errno
import os
import signal

import numpy as np
import pytest
import tiny
import torch

import checkpoint
from dataset import make_batch


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert tiny.run(folder, save_every=2, keep_last=2) == 0
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return tiny.copy(finished, tmp_path / "run")


def steps(folder):
    return [checkpoint.step_of(p) for p in checkpoint.numbered(folder)]


def test_every_file_loads_without_unpickling_and_milestones_stay(finished):
    assert steps(finished) == [0, 3, 6, 8, 9, 10, 12]  # milestones 0 3 6 9 12; the last two, 8 10
    for path in finished.glob("*.pt"):
        state = torch.load(path, weights_only=True)
        assert not any("module" in name or "_orig_mod" in name for name in state["model"])
        assert all(t.dtype == torch.float32 for t in state["model"].values())
    assert not [p for p in finished.iterdir() if p.name.startswith(".")]  # nothing temporary


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "_orig_mod.module.",
                                    "module._orig_mod."])
def test_wrapper_prefixes_are_stripped(run, prefix):
    state = tiny.state(run)
    weights = state["model"]
    # DDP and a whole compiled model stand in front, a compiled block in the middle.
    state["model"] = {prefix + k.replace("attn.", "_orig_mod.attn."): v for k, v in weights.items()}
    torch.save(state, run / "other.pt")
    model = checkpoint.build_model(checkpoint.read(run / "other.pt"))
    assert all(torch.equal(p, weights[n]) for n, p in model.named_parameters())
    assert not model.training


def test_names_that_do_not_fit_are_listed(run):
    state = checkpoint.read(run / "ckpt.pt")
    state["model"]["extra.weight"] = state["model"].pop("norm_f.weight")
    with pytest.raises(checkpoint.CheckpointError, match="extra.weight, norm_f.weight"):
        checkpoint.build_model(state)


class Full:
    """A file on a disk with no room after so many bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.file.close()


def fill_disk(monkeypatch, room, saves=1):
    """From the saves-th checkpoint on the disk has room for so many bytes."""
    real, count = builtins.open, []

    def fake(path, mode="r", *args, **kwargs):
        file = real(path, mode, *args, **kwargs)
        if str(path).endswith(".pt.tmp"):
            count.append(None)
            return Full(file, room) if len(count) >= saves else file
        return file
    monkeypatch.setattr(builtins, "open", fake)


@pytest.mark.parametrize("room", [0, 30_000])
def test_a_full_disk_says_how_much_is_needed_and_keeps_the_old_file(tmp_path, monkeypatch, capsys,
                                                                    room):
    straight, folder = tmp_path / "a", tmp_path / "b"
    assert tiny.run(straight) == 0
    with monkeypatch.context() as patch:
        fill_disk(patch, room, saves=3)
        assert tiny.run(folder) == 2
    error = capsys.readouterr().err
    need = checkpoint.size(tiny.state(straight, "ckpt_000006.pt"))
    assert error.count("\n") == 1 and "the disk is full" in error and f"{need:,} bytes" in error
    assert tiny.state(folder)["step"] == 3 and not list(folder.glob(".*"))
    assert tiny.run(folder, resume="newest") == 0
    tiny.assert_same_run(straight, folder)


def save_under_a_limit(folder):
    import resource
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    try:
        checkpoint.save(dict(checkpoint.read(folder / "ckpt.pt"), step=99), folder, set(), 1)
    except checkpoint.CheckpointError as error:
        (folder / "said").write_text(str(error))


def test_a_write_that_the_system_refuses(run):
    """The real thing rather than a fake: a limit on the size of a file."""
    before = (run / "ckpt.pt").read_bytes()
    process = tiny.FORKS.Process(target=save_under_a_limit, args=(run,))
    process.start()
    assert tiny.wait([process]) == [0]
    said = (run / "said").read_text()
    assert "ckpt_000099.pt" in said and "bytes needed" in said and "too large" in said
    assert (run / "ckpt.pt").read_bytes() == before and not list(run.glob(".*"))
    assert not (run / "ckpt_000099.pt").exists()


@pytest.mark.parametrize("call", [(torch, "save"), (os, "fsync"), (os, "replace"), (os, "link")])
def test_dying_in_any_part_of_a_save_leaves_a_whole_file(run, monkeypatch, call):
    """Kill is an exception that nothing catches here; tests/stress.py sends the real signal."""
    class Kill(BaseException):
        pass

    def die(*args, **kwargs):
        raise Kill

    state = checkpoint.read(run / "ckpt.pt", mmap=False)
    for n, after in enumerate((0, 1)):
        original = getattr(*call)
        with monkeypatch.context() as patch:
            calls = []
            patch.setattr(*call, lambda *a, **k: die() if len(calls) == after else
                          (calls.append(0), original(*a, **k))[1])
            try:
                checkpoint.save(dict(state, step=20 + n), run, set(), 1)
            except Kill:
                pass
        assert checkpoint.newest(run)[1]["step"] in (12, 20, 21)
        for path in run.glob("*.pt"):
            checkpoint.read(path)


def test_a_file_system_without_hard_links(run, monkeypatch):
    def refuse(*args):
        raise OSError(errno.EPERM, "no links here")
    monkeypatch.setattr(os, "link", refuse)
    checkpoint.save(dict(checkpoint.read(run / "ckpt.pt", mmap=False), step=13), run, set(), 1)
    assert tiny.state(run)["step"] == tiny.state(run, "ckpt_000013.pt")["step"] == 13


def test_no_weight_that_is_not_finite_is_written(run):
    state, before = checkpoint.read(run / "ckpt.pt", mmap=False), steps(run)
    state["model"]["blocks.1.attn.c_v.weight"][3, 4] = float("nan")
    with pytest.raises(checkpoint.NonFiniteError, match="step 12: weight blocks.1.attn.c_v.weight"):
        checkpoint.save(state, run, set(), 1)
    assert steps(run) == before
    assert all(t.isfinite().all() for t in tiny.state(run)["model"].values())


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"text", None])
def test_other_files_are_refused_in_one_line(run, content):
    path = run / "ckpt.pt"
    if content is None:
        torch.save({"model": {}, "epoch": np.float64(3)}, path)  # what safe reading refuses
    else:
        path.write_bytes(content)
    with pytest.raises(checkpoint.CheckpointError, match="not a complete checkpoint") as error:
        checkpoint.read(path)
    assert "\n" not in str(error.value)
    torch.save({"model": {}}, path)
    with pytest.raises(checkpoint.CheckpointError, match="lacks .*format, .*model_config"):
        checkpoint.read(path)


def test_another_format_is_refused(run):
    torch.save(dict(tiny.state(run), format=2), run / "ckpt.pt")
    with pytest.raises(checkpoint.CheckpointError, match="has format 2; this program reads 1"):
        checkpoint.read(run / "ckpt.pt")


def test_a_checkpoint_gives_the_logged_loss_again(finished):
    """Weights, sizes and corpus of the file are enough; nothing is left in the process."""
    import prepare
    state = checkpoint.read(finished / "ckpt.pt")
    data = prepare.Dataset(tiny.corpora() / "tiny")
    rows = prepare.Packing(data, data.split("val"), 64, None)
    x, y, cu = map(torch.from_numpy, make_batch(*rows.read(range(1000 // 64)), 8))
    with torch.no_grad():
        nll = checkpoint.build_model(state)(x, cu, y)[0].item()
    expected = tiny.log(finished, "eval")[-1]
    assert expected["step"] == 12 and expected["n_scored"] == int((y >= 0).sum())
    assert nll / expected["n_scored"] == pytest.approx(expected["val_loss"], abs=1e-5)
