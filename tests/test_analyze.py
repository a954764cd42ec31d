"""Comparisons, verdicts, and the whole program on trained, damaged and missing runs."""
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch

import analyze
import dataset
from configurator import UserError
from model import ModelConfig, Transformer

ROOT = Path(__file__).parents[1]
QUICK = ["--resamples=300", "--probes=3"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A pair and its noise control, trained for a moment: {name: folder}."""
    folder = tmp_path_factory.mktemp("out")
    arms = {"san": {"n_layer": 5}, "ffn": {"use_ffn": True}, "rms": {"n_layer": 5, "norm": "rms"}}
    for name, options in arms.items():
        assert tiny.run(folder / name, **({"n_layer": 1} | options)) == 0
    return {name: folder / name for name in arms}


def altered(folder, to, change):
    """A copy of a run whose newest checkpoint is changed, without its log and milestones."""
    state = torch.load(folder / "ckpt.pt", weights_only=True)
    to.mkdir()
    torch.save(change(state) or state, to / "ckpt.pt")
    return to / "ckpt.pt"


def analyse(*paths, out, **options):
    flags = [f"--out={out}", *QUICK, *(f"--{k}={v}" for k, v in options.items())]
    analyze.main([*map(str, paths), *flags])
    return json.loads((out / "analysis.json").read_text())


def group(name, seed=42, sha="a", tokens=1, **settings):
    cfg = ModelConfig(**{k: v for k, v in settings.items() if k in vars(ModelConfig())})
    key = vars(cfg) | analyze.BASE | settings | {"tokens": tokens, "data": sha, "dataset": sha}
    return analyze.Group([SimpleNamespace(name=name, seed=seed, key=key, cfg=cfg)])


def test_what_is_given_is_recognised():
    base = group("san_param")
    arms = {n: group(f"ffn{n}", use_ffn=True, n_layer=n, muon_lr=9.0) for n in (4, 9, 20)}
    odd = [group("rms", norm="rms"), group("adamw", optimizer="adamw"),
           group("half", tokens=0), group("half_ffn", tokens=0, use_ffn=True, n_layer=4)]
    found = analyze.comparisons([base, *arms.values(), *odd])
    seen = {(c["kind"], c["what"], c["a"].name, c["b"].name) for c in found}
    assert seen == {("pair", "params", "san_param", "ffn4"), ("pair", "flops", "san_param", "ffn9"),
                    ("pair", "depth", "san_param", "ffn20"),
                    ("variant", "norm=rms", "rms", "san_param"),
                    ("variant", "optimizer=adamw", "adamw", "san_param"),
                    ("pair", "params", "half", "half_ffn")}
    family, first = analyze.families(found)
    assert list(family) == ["tokens"] and found[first]["a"] is base
    assert analyze.comparisons([base, group("b", n_head=4)])[0]["kind"] == "other"
    with pytest.raises(UserError, match="different corpora"):
        analyze.comparisons([base, group("b", sha="b", use_ffn=True)])


def test_verdicts():
    c = dict(kind="pair", a="x", b="y", paired=[], delta=0.01, ci=[0.005, 0.015])
    assert analyze.verdict(c, 0.001)[0] == "FFN better"
    assert analyze.verdict(c | {"delta": -0.01, "ci": [-0.02, -0.01]}, 0.001)[0] == "SAN better"
    assert analyze.verdict(c | {"kind": "variant"}, 0.001)[0] == "y better"
    assert analyze.verdict(c, 0.006)[0] == "tie"
    assert analyze.verdict(c | {"ci": [-0.01, 0.03]}, 0.001)[0] == "undecided"
    assert analyze.verdict(c | {"paired": [{"delta": 1}, {"delta": -1}]}, 0.001)[0] == "undecided"


def test_a_pair_and_its_control(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    before = {p: p.stat().st_mtime_ns for p in runs["san"].iterdir()}
    a = analyse(*runs.values(), out=tmp_path / "one")
    files = {p.name: p.read_bytes() for p in (tmp_path / "one").iterdir()}
    assert {"report.md", "regions.png", "spectra.png", "gates.png", "curves.png", "rank.png",
            "decomposition.png", "contrasts.png"} <= set(files)
    assert "equal parameters" in capsys.readouterr().out
    for r in a["runs"]:
        assert r["held_out"]["loss"] == pytest.approx(r["logged_loss"], abs=1e-5)
        assert [m["step"] for m in r["spectra"]] == [0, 3, 6, 9, 12] and not r["left_out"]
    pair, control = sorted(a["contrasts"], key=lambda c: c["kind"])
    assert (pair["what"], control["what"]) == ("params", "norm=rms")
    assert a["noise_floor"]["value"] == pytest.approx(abs(control["delta"]))
    regions = [c for c in pair["cells"] if c["exercise"] == "all" and c["region"] != "all"]
    assert sum(c["weighted"] for c in regions) == pytest.approx(pair["delta"], abs=1e-6)
    losses = [side[0]["loss"] for side in pair["sides"]]
    assert pair["delta"] == pytest.approx(losses[0] - losses[1], abs=1e-6)
    analyse(*runs.values(), out=tmp_path / "two")
    assert files == {p.name: p.read_bytes() for p in (tmp_path / "two").iterdir()}
    assert before == {p: p.stat().st_mtime_ns for p in runs["san"].iterdir()}


def test_damaged_and_odd_checkpoints(runs, tmp_path, monkeypatch):
    draw = analyze.plots.draw
    monkeypatch.setattr(analyze.plots, "draw", lambda a, folder: {})  # slow, and not the point here

    def prefixed_bf16(state):
        state["model"] = {f"module._orig_mod.{k}": v.bfloat16() for k, v in state["model"].items()}

    def with_nan(state):
        state["model"]["blocks.1.attn.c_v.weight"][0, 0] = math.nan

    def uniform(state):
        state["model"]["wte.weight"].zero_()

    a = analyse(altered(runs["san"], tmp_path / "a", prefixed_bf16), out=tmp_path / "ao")["runs"][0]
    assert a["held_out"]["loss"] == pytest.approx(a["decomposition"][0]["loss"], abs=0.2)
    a = analyse(altered(runs["san"], tmp_path / "b", with_nan), out=tmp_path / "bo")["runs"][0]
    assert any("c_v" in line for line in a["left_out"]) and "held_out" not in a
    assert a["spectra"][0]["matrices"]["v"]["layer"] == [0, 2, 3, 4]
    a = analyse(altered(runs["san"], tmp_path / "c", uniform), out=tmp_path / "co")["runs"][0]
    h = a["held_out"]
    assert h["bits_per_byte"] == pytest.approx(math.log2(320) * h["tokens"] / h["bytes"])
    data = dataset.Dataset(tiny.corpora() / "tiny")
    rows, docs = dataset.Packing(data, data.split("val"), 64, None).read(range(h["rows"]))
    targets = rows[:, 1:][docs[:, 1:] == docs[:, :-1]]
    text = data.encoding().decode_bytes([t for t in targets if t not in data.specials.values()])
    assert (len(text), len(targets)) == (h["bytes"], h["tokens"])
    monkeypatch.setattr(analyze.plots, "draw", draw)
    a = analyse(runs["san"], out=tmp_path / "do", data_dir=tmp_path)["runs"][0]
    monkeypatch.setattr(analyze.plots, "draw", lambda a, folder: {})
    assert "does not exist" in a["left_out"][0] and len(a["spectra"]) == 5
    for options in ({"residual": "none"}, {"residual": "rezero", "qk_norm": False},
                    {"residual": "standard", "post_norm": True, "norm": "rms"}):
        cfg = ModelConfig(vocab_size=64, block_size=16, n_layer=2, n_embd=16, n_head=2, n_kv_head=1,
                          use_ffn=True, **options)
        path = tmp_path / options["residual"]
        path.mkdir()
        torch.save({"format": 1, "model": Transformer(cfg).state_dict(), "model_config": vars(cfg)},
                   path / "x.pt")
        assert len(analyse(path / "x.pt", out=path)["runs"][0]["spectra"][0]["matrices"]) == 7


def test_a_diverged_run_is_called_so(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(analyze.plots, "draw", lambda a, folder: {})
    lost = tmp_path / "lost"
    shutil.copytree(runs["rms"], lost)
    log = (lost / "log.jsonl").read_text().splitlines(keepends=True)[:-3]
    (lost / "log.jsonl").write_text("".join(log) + '{"event": "nonfinite", "step": 11}\n')
    shutil.copy(lost / "ckpt_000003.pt", lost / "ckpt.pt")
    (tmp_path / "p.toml").write_text("[[prediction]]\nid = 'x'\nstatement = 's'\nquantity = "
                                     "'diverges'\na = 'lost'\nexpect = true\n")
    a = analyse(lost, runs["san"], out=tmp_path / "o", predictions=tmp_path / "p.toml")
    assert [r["status"] for r in a["runs"]] == ["diverged", "done"]
    assert a["contrasts"][0]["verdict"] == "lost diverged"
    assert "step 11" in a["runs"][0]["left_out"][0]
    assert a["predictions"][0]["verdict"] == "confirmed"
    assert "AFTER the run started" in (tmp_path / "o" / "report.md").read_text()


def test_mistakes_end_in_one_line(runs, tmp_path):
    (tmp_path / "no.pt").write_text("nothing")
    shutil.copytree(runs["san"], tmp_path / "san")
    for args, text in ((["none.pt"], "no checkpoint"), ([], "at least one"),
                       (["x.pt", "--noise_flor=1"], "did you mean noise_floor"),
                       ([str(tmp_path / "no.pt")], "not a complete checkpoint"),
                       ([str(runs["san"]), str(tmp_path / "san")], "given twice")):
        with pytest.raises(UserError, match=text):
            analyze.main(args)
    done = subprocess.run([sys.executable, "analyze.py", "none.pt"], cwd=ROOT, text=True,
                          capture_output=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not done.stdout


def test_pairs_are_named_by_what_they_are_matched_on():
    shape = dict(vocab_size=1024, block_size=128, n_embd=64, n_head=4, n_kv_head=2)
    san = SimpleNamespace(cfg=ModelConfig(**shape, n_layer=10))
    named = {n: analyze.match(san, SimpleNamespace(
        cfg=ModelConfig(**shape, use_ffn=True, n_layer=n)))[0] for n in (1, 2, 3, 5, 10)}
    # 3 blocks cost 0.85 of the SAN's FLOPs; 4 would cost more than it.
    assert named == {1: "none", 2: "params", 3: "flops", 5: "none", 10: "depth"}
