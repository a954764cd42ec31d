"""train.py: values that are not finite and input that cannot be right end a run in one line."""
import math
import re
import shutil

import pytest
import tiny
import torch

import train


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight") / "run"
    assert tiny.run(folder) == 0
    return folder


# ---------------------------------------------------------------------------- non-finite values

def spoil(rank=0, steps=(5,), value=float("nan")):
    """One gradient entry of one parameter is not finite in some steps, on one rank."""
    original = train.Muon.__init__

    def init(self, groups, **options):
        original(self, groups, **options)
        calls = []

        def hook(grad):
            calls.append(None)
            return torch.full_like(grad, value) if (len(calls) - 1) // 2 in steps else grad
        p = self.param_groups[0]["params"][5]
        p.register_hook(hook)
    train.Muon.__init__ = init


@pytest.fixture
def spoilt(monkeypatch):
    monkeypatch.setattr(train.Muon, "__init__", train.Muon.__init__)
    spoil(steps=(5, 6))


def test_a_gradient_that_is_not_finite_stops_before_the_update(straight, tmp_path, spoilt, capsys,
                                                               monkeypatch):
    assert tiny.run(tmp_path) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "step 5: the gradient of blocks.1.attn.c_k.weight is not finite" in error
    assert tiny.state(tmp_path)["step"] == 5
    assert [e["parameter"] for e in tiny.log(tmp_path, "nonfinite")] == [
        "blocks.1.attn.c_k.weight"]
    monkeypatch.undo()  # as if the cause had passed
    assert tiny.run(tmp_path, resume="newest") == 0
    tiny.assert_same_run(straight, tmp_path)


def test_skipping_counts_and_goes_on(tmp_path, spoilt, monkeypatch):
    assert tiny.run(tmp_path, nonfinite="skip", save_every=1, keep_last=9) == 0
    assert [(e["step"], e["skipped"]) for e in tiny.log(tmp_path, "nonfinite")] == [(5, 1), (6, 2)]
    assert tiny.log(tmp_path, "done")[0]["skipped"] == 2
    before, after = (tiny.state(tmp_path, f"ckpt_00000{i}.pt") for i in (5, 7))
    assert all(torch.equal(before["model"][n], after["model"][n]) for n in before["model"])
    assert [e["step"] for e in tiny.log(tmp_path, "train")] == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]
    monkeypatch.undo()
    assert tiny.run(tmp_path, resume=tmp_path / "ckpt_000009.pt", nonfinite="skip") == 0
    assert tiny.log(tmp_path, "done")[0]["skipped"] == 2  # the count is part of the run


def spoil_rank_1(rank):
    if rank == 1:
        spoil(steps=(3,), value=math.inf)


def test_all_ranks_stop_alike(tmp_path):
    ranks = tiny.start(tmp_path, 2, spoil_rank_1, total_batch_size=1024)
    assert tiny.wait(ranks) == [1, 1]
    for rank in (0, 1):
        assert "step 3: the gradient of" in (tmp_path / f"rank{rank}.txt").read_text()
    assert tiny.state(tmp_path)["step"] == 3


def test_a_rate_that_blows_up_ends_with_finite_files(tmp_path, capsys):
    assert tiny.run(tmp_path, adam_lr=1e38, muon_lr=1e38, save_every=1, keep_last=99) == 1
    assert "not finite" in capsys.readouterr().err
    for path in tmp_path.glob("*.pt"):
        assert all(t.isfinite().all() for t in tiny.state(tmp_path, path.name)["model"].values())


# ---------------------------------------------------------------------------- refusals

def damage(folder, how):
    tokens = folder / "tokens.bin"
    data = tokens.read_bytes()
    tokens.write_bytes({"byte": data[:-1], "half": data[:len(data) // 2], "swapped": (
        tiny.corpora() / "other" / "tokens.bin").read_bytes(), "empty": b"",
        "flipped": data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]}[how])


@pytest.mark.parametrize("how", ["byte", "half", "swapped", "flipped", "empty"])
def test_damaged_data_are_refused_before_the_first_step(tmp_path, how, capsys):
    shutil.copytree(tiny.corpora() / "tiny", tmp_path / "tiny")
    damage(tmp_path / "tiny", how)
    options = dict(verify_data=True) if how == "flipped" else {}
    assert tiny.run(tmp_path / "run", data_dir=tmp_path, **options) == 2
    error = capsys.readouterr().err
    assert re.search(r"tokens.bin: expected .*, found", error) and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options, message", [
    (dict(dataset="none"), "tiny.*none|none"), (dict(n_head=3), "does not divide by n_head 3"),
    (dict(n_kv_head=4), "does not divide by n_kv_head 4"), (dict(vocab_size=300), "320 token ids"),
    (dict(block_size=8192, total_batch_size=2**15), "do not fill one row"),
    (dict(n_embd=34), "odd"),
    (dict(device="cuda"), "sees no CUDA"), (dict(residual="x"), "residual is 'x'"),
    (dict(branch="none.pt"), "no checkpoint none.pt"), (dict(max_docs=1), "do not fill one row|")])
def test_bad_input_ends_in_one_line(tmp_path, options, message, capsys):
    if options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("has a CUDA device")
    if options == dict(max_docs=1):
        options["block_size"], options["total_batch_size"] = 512, 2048
    assert tiny.run(tmp_path / "run", **options) == 2
    error = capsys.readouterr().err
    assert re.search(message, error) and error.count("\n") == 1, error
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert tiny.run(tmp_path / "file" / "run") == 2
    assert capsys.readouterr().err.count("\n") == 1
