"""sweep.py with a stand-in for train.py: edges, the ledger, divergence, failures, signals."""
import json
import os
import threading
import time

import pytest

import sweep
from configurator import ConfigError, UserError

# A valley in log2 of the rate: it writes what train.py writes, and does as its rate says.
FAKE = '''
import json, math, os, pathlib, sys, time
flags = dict(a.lstrip("-").partition("=")[::2] for a in sys.argv[1:] if a.startswith("--"))
rate, folder = float(flags["muon_lr"]), pathlib.Path(flags["out_dir"])
with open(folder / "calls.txt", "a") as file:
    file.write(" ".join(sys.argv[1:]) + f" threads={os.environ['OMP_NUM_THREADS']}\\n")
folder.joinpath("ckpt.pt").touch()
folder.joinpath("pid").write_text(str(os.getpid()))
plan = json.loads((folder.parent / "plan.json").read_text())
loss = 1 + abs(math.log2(rate / plan["best"]))
log = {"event": "done", "step": int(flags["max_steps"]), "val_loss": loss}
if rate > plan.get("diverges_above", math.inf):
    log |= {"event": "nonfinite", "val_loss": None}
folder.joinpath("log.jsonl").write_text(json.dumps(log) + "\\n")
if log["event"] == "nonfinite":
    sys.exit(print("train.py: step 7: the gradient of wte.weight is not finite") or 1)
if rate == plan.get("crashes_at"):
    raise RuntimeError("out of memory")
if rate == plan.get("stops_at"):
    sys.exit(75)
time.sleep(plan.get("sleep", 0))
'''


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """run(plan, *flags) -> exit code; base rate 0.02."""
    (tmp_path / "fake.py").write_text(FAKE)
    (tmp_path / "micro_san.py").write_text("muon_lr = 0.02")
    monkeypatch.setattr(sweep, "TRAIN", tmp_path / "fake.py")
    monkeypatch.setattr(sweep, "open_data", lambda *_: None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def run(plan, *flags):
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        config = str(tmp_path / "micro_san.py")
        return sweep.main([config, "--steps=40", f"--out_dir={tmp_path}", *flags])

    run.folder = tmp_path
    run.ledger = lambda: json.loads((tmp_path / "muon_lr.json").read_text())
    run.calls = lambda: {p.parent.name.removeprefix("muon_lr_"): p.read_text().splitlines()
                         for p in tmp_path.glob("*/calls.txt")}
    return run


@pytest.mark.parametrize("best, tried", [(0.02, [0.01, 0.02, 0.04]),
                                         (0.08, [0.01, 0.02, 0.04, 0.08, 0.16]),
                                         (0.005, [0.0025, 0.005, 0.01, 0.02, 0.04])])
def test_edges_are_extended_until_the_best_is_interior(cells, capsys, best, tried):
    assert cells({"best": best}) == 0
    ledger = cells.ledger()
    assert [c["value"] for c in sorted(ledger["cells"].values(), key=lambda c: c["value"])] == tried
    assert ledger["lock"] == best and ledger["interior"]
    assert set(cells.calls()) == set(ledger["cells"])
    lines = capsys.readouterr().out.splitlines()[-3:]
    factors = " | ".join(f"{value / 0.02:g}x" for value in tried)
    assert lines[0] == f"| micro_san muon_lr | {factors} | lock |"
    assert "**1.0000**" in lines[2] and lines[2].endswith(f"| {best:g} |")


def test_a_limit_ends_it_without_a_lock_and_a_higher_one_goes_on(cells, capsys):
    assert cells({"best": 5.0}, "--limit=4", "--print_lock") == 1
    out, err = capsys.readouterr()
    assert out == "" and "highest of 4" in err and cells.ledger()["lock"] is None
    assert cells({"best": 0.16}, "--limit=6", "--print_lock") == 0
    assert capsys.readouterr().out == "0.16\n"
    assert all(len(lines) == 1 for lines in cells.calls().values())


def test_a_finished_cell_is_never_run_again_and_an_interrupted_one_is_resumed(cells):
    with pytest.raises(sweep.Stopped):
        cells({"best": 0.02, "stops_at": 0.02})
    assert list(cells.ledger()["cells"]) == ["0.01"]
    assert cells({"best": 0.02}) == 0
    calls = cells.calls()
    assert len(calls["0.01"]) == len(calls["0.04"]) == 1 and len(calls["0.02"]) == 2
    assert "--resume" not in calls["0.02"][0] and "--resume" in calls["0.02"][1]
    assert "--max_steps=40" in calls["0.01"][0]
    assert cells({"best": 0.02}) == 0 and cells.calls() == calls


def test_divergence_is_a_result_and_the_worst(cells, capsys):
    assert cells({"best": 0.02, "diverges_above": 0.03}) == 0
    assert cells.ledger()["cells"]["0.04"]["loss"] is None and cells.ledger()["lock"] == 0.02
    assert "| diverged | 0.02 |" in capsys.readouterr().out


def test_if_all_diverge_lower_rates_are_tried(cells):
    assert cells({"best": 0.0025, "diverges_above": 0.006}) == 0
    assert cells.ledger()["lock"] == 0.0025


def test_a_crash_stops_the_sweep_and_keeps_what_is_done(cells):
    with pytest.raises(UserError, match="exit code 1: RuntimeError: out of memory") as error:
        cells({"best": 0.02, "crashes_at": 0.02})
    assert error.value.code == 2 and list(cells.ledger()["cells"]) == ["0.01"]


def test_threads_do_not_depend_on_jobs(cells, monkeypatch):
    assert cells({"best": 0.02}, "--jobs=2") == 0
    assert all(line.endswith("threads=1") for lines in cells.calls().values() for line in lines)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert cells({"best": 0.02}, "--factors=4") == 0
    assert cells.calls()["0.08"][0].endswith("threads=3")


def test_a_lock_that_moves_into_the_config_keeps_its_ledger_another_setting_does_not(cells):
    assert cells({"best": 0.04}) == 0
    before = cells.calls()
    assert cells({"best": 0.04}, "--set=muon_lr=0.04") == 0 and cells.calls() == before
    with pytest.raises(ConfigError, match="seed 42 -> 43"):
        cells({"best": 0.04}, "--set=seed=43")


@pytest.mark.parametrize("flags, word", [
    (["--param=n_layer"], "n_layer"), (["--param=muon_rl"], "muon_rl"), (["--jobs=0"], "jobs"),
    (["--factors=a"], "factors"), (["--set=sed=1"], "seed"), (["--jobs=2", "--nproc=2"], "jobs"),
    (["--set=eval_every=0"], "eval_every"), (["--step=4"], "steps"),
    (["another.py"], "one config")])
def test_mistakes_are_named(cells, flags, word):
    with pytest.raises(ConfigError, match=word):
        cells({"best": 1}, *flags)


def test_a_signal_ends_the_cells(cells, monkeypatch):
    """What the handler does, a thread does here as soon as two cells run."""
    monkeypatch.setattr(sweep, "seen", [])

    def send():
        while len(list(cells.folder.glob("*/log.jsonl"))) < 2:
            time.sleep(0.02)
        sweep.seen.append(1)

    threading.Thread(target=send, daemon=True).start()
    with pytest.raises(sweep.Stopped, match="the same command goes on") as error:
        cells({"best": 0.02, "sleep": 600}, "--jobs=2")
    assert error.value.code == 75 and not (cells.folder / "muon_lr.json").exists()
    for file in cells.folder.glob("*/pid"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)
