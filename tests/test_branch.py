"""train.py --branch: a checkpoint cooled down with another horizon, or on other data."""
import pytest
import tiny

import train


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A finished run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    assert tiny.run(folder, save_every=5) == 0
    return folder


def test_branch_cools_down_without_a_jump(straight, tmp_path, capsys):
    source = straight / "ckpt_000006.pt"
    branch = dict(branch=source, decay_steps=4)
    assert tiny.run(tmp_path / "b", max_steps=10, **branch) == 0
    rates = [line["muon_lr"] / 0.02 for line in tiny.log(tmp_path / "b", "train")]
    assert rates[-1] == pytest.approx(0.05) and rates == sorted(rates, reverse=True)
    assert 0.8 < rates[0] < 1 and len(rates) == 4
    (event,) = tiny.log(tmp_path / "b", "branch")
    assert event["changed"] == ["max_steps 12 -> 10", "decay_steps 2 -> 4"]
    assert "branch: from step 6; max_steps 12 -> 10" in capsys.readouterr().out
    # The same rows as the run it came from, until that ends.
    assert [e["batch_hash"] for e in tiny.log(tmp_path / "b", "train")] == [
        e["batch_hash"] for e in tiny.log(straight, "train")[6:10]]
    # A far horizon does not open the warm-up again.
    with tiny.signal_at(train.Trainer, "update", 1):
        assert tiny.run(tmp_path / "c", max_steps=2000, **branch) == train.STOPPED
    (line,) = tiny.log(tmp_path / "c", "train")
    assert line["muon_lr"] == 0.02
    assert tiny.run(tmp_path / "d", max_steps=11, decay_steps=6, branch=source) == 2
    assert "the rate would jump" in capsys.readouterr().err
    assert tiny.run(tmp_path / "e", n_layer=3, branch=source) == 2
    assert "n_layer 2 -> 3" in capsys.readouterr().err


@pytest.mark.parametrize("options", [dict(dataset="other"), dict(seed=7), dict(max_docs=50)])
def test_branch_onto_other_data_starts_at_their_beginning(straight, tmp_path, options, capsys):
    with tiny.signal_at(train.Trainer, "update", 1):
        branch = straight / "ckpt_000006.pt"
        assert tiny.run(tmp_path / "b", branch=branch, **options) == train.STOPPED
    assert "read from their beginning" in capsys.readouterr().out
    assert tiny.run(tmp_path / "b", resume="newest", **options) == 0
    tiny.run(tmp_path / "fresh", max_steps=6, decay_steps=0, **options)
    assert len(tiny.log(tmp_path / "b", "branch")) == 1
    assert [e["batch_hash"] for e in tiny.log(tmp_path / "b", "train")] == [
        e["batch_hash"] for e in tiny.log(tmp_path / "fresh", "train")]
