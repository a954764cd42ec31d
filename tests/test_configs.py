"""Every file of config/ and every script of runs/: what they claim, without a training step."""
import dataclasses
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

from configurator import load, model_fields
from model import ModelConfig, Transformer, flops_per_token, num_params, partner
from sweep import SweepConfig
from train import TrainConfig

ROOT = Path(__file__).parents[1]
NAMES = sorted(p.stem for p in (ROOT / "config").glob("*.py"))
SCRIPTS = sorted(p.name for p in (ROOT / "runs").glob("*.sh") if p.name != "common.sh")
RATES = {"muon_lr", "adam_lr", "partner"}
# The tables of section 3 of the specification: total and non-embedding parameters.
COUNTS = {
    "san_param": (24130580, 15741972), "ffn_param": (24122376, 15733768),
    "ffn_flop": (43788946, 35400338), "ffn_depth": (87055400, 78666792),
    "san_tiny": (6164490, 1970186), "ffn_tiny": (6161924, 1967620),
    "san_small": (12492174, 6200718), "ffn_small": (12930054, 6638598),
    "san_large": (42455194, 31969434), "ffn_large": (41213450, 30727690),
    "san_xl": (69235488, 56652576), "ffn_xl": (65677836, 53094924),
    "san_depth8": (28475688, 15368488), "san_depth32": (21929392, 15375792),
    "san_depth48": (20008048, 14765168), "san_sandwich": (24140820, 15752212),
    "san_standard": (24130560, 15741952), "san_plain_qk": (24128020, 15739412)}  # fmt: skip
CELLS = {"san_param": 3, "ffn_param": 4, "san_adamw": 4, "ffn_adamw": 6}  # of the study's sweep
DENSE = {"san_param": 0.396, "ffn_param": 0.195, "ffn_flop": 0.376, "ffn_depth": 0.774}  # GFLOP


def config(name):
    return load(TrainConfig, [str(ROOT / "config" / f"{name}.py")])[0]


def shape(cfg):
    vocab = {"vocab_size": cfg.vocab_size or 1024}  # micro configs leave it to their corpus
    return ModelConfig(**model_fields(cfg, ModelConfig) | vocab)


def header(name):
    return (ROOT / "config" / f"{name}.py").read_text().split("\n\n")[0].splitlines()


def test_every_arm_of_the_study_is_here():
    others = ("san_base ffn_base san_adamw ffn_adamw san_gated san_rezero san_none san_rms "
              "san_web ffn_web")
    assert set(COUNTS) | {*others.split(), "ffn_depth20"} <= set(NAMES)
    assert {f"{a}_docs{n}m" for a in ("san", "ffn") for n in (2, 8, 32)} <= set(NAMES)
    assert {f"{a}_standard" for a in NAMES if re.match(r"(san|ffn)_depth\d+$", a)} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_loads_builds_and_says_what_it_is(name):
    cfg, lines = config(name), header(name)
    model = shape(cfg)
    with torch.device("meta"):
        built = Transformer(model)
    total, inside = num_params(model)
    assert total == sum(p.numel() for p in built.parameters())
    assert (total, inside) == COUNTS.get(name, (total, inside))
    if name in DENSE:
        assert round(flops_per_token(model, model.block_size) / 1e9, 3) == DENSE[name]
    assert len(lines) == 3 and all(re.match(r"# \S.*[.\w]$", line) for line in lines)
    assert re.search(rf"Partners?: .*\b{cfg.partner}\b", lines[0])
    assert lines[1].endswith(f"train.py config/{name}.py")
    assert f"Expect {total:,} parameters; " in lines[2]
    if found := re.search(r"(?:at |\()([\d.]+)([BM]) tokens", lines[2]):
        tokens = float(found[1]) * {"B": 1e9, "M": 1e6}[found[2]]
        assert abs(cfg.max_steps * cfg.total_batch_size / tokens - 1) < 0.01
    # One node of 8, and one device, divide the batch.
    unit = cfg.block_size * cfg.device_batch_size * (1 if "micro" in name else 8)
    assert cfg.total_batch_size % unit == 0


@pytest.mark.parametrize("name", NAMES)
def test_partner_is_the_pair_or_the_base(name):
    cfg, other = config(name), config(config(name).partner)
    differ = {f.name for f in dataclasses.fields(cfg)
              if getattr(cfg, f.name) != getattr(other, f.name)} - RATES
    if cfg.use_ffn == other.use_ffn:  # an ablation: one switch
        assert len(differ) == 1 and differ <= {"residual", "norm", "qk_norm", "post_norm"}
        return
    assert {"use_ffn"} <= differ <= {"use_ffn", "n_layer"}
    san, ffn = (shape(c) for c in sorted((cfg, other), key=lambda c: c.use_ffn))
    axis = {"ffn_flop": "flops", "micro_ffn_flop": "flops", "ffn_depth": "depth",
            "micro_ffn_depth": "depth"}.get(name, "params")
    assert partner(san, axis)[0] == ffn


@pytest.mark.parametrize("name", NAMES)
def test_lists_only_what_differs_from_the_defaults(name):
    text = (ROOT / "config" / f"{name}.py").read_text()
    defaults, cfg = TrainConfig(), config(name)
    # What sets a pair apart stands in both of its files; heads stand together.
    apart = {"use_ffn", "n_layer", "muon_lr", "n_head", "n_kv_head"}
    keys = [k for line in text.splitlines() if (m := re.match(r"([\w, ]+) = ", line))
            for k in m[1].split(", ")]
    assert len(text.splitlines()) <= 25 and len(keys) == len(set(keys))
    assert [k for k in keys if getattr(cfg, k) == getattr(defaults, k) and k not in apart] == []
    assert not re.search(r"^\s*(import|from|def|if|for|_)", text, re.M)


def calls(script, tmp_path, **env):
    """The python and torchrun command lines of a script, with both replaced by a stub."""
    stub, seen = tmp_path / "bin", tmp_path / "calls"
    stub.mkdir()
    for tool in ("python", "torchrun"):
        (stub / tool).write_text(f'#!/bin/sh\nprintf "%s\\0" {tool} "$@" > {seen}.$$\n'
                                 'case "$*" in *--print_lock*) echo 0.0123 ;; esac\n')
        (stub / tool).chmod(0o755)
    env |= {"PATH": f"{stub}:{os.environ['PATH']}", "OUT": str(tmp_path / "out")}
    found = subprocess.run(["bash", ROOT / "runs" / script], capture_output=True, text=True,
                           timeout=100, env=os.environ | env)
    assert found.returncode == 0, found.stderr
    return [p.read_text().split("\0")[:-1] for p in tmp_path.glob("calls.*")]


@pytest.mark.parametrize("dry", ["", "1"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_call_what_exists_with_options_that_exist(script, dry, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    text, trained, swept = (ROOT / "runs" / script).read_text(), set(), set()
    for tool, *words in calls(script, tmp_path, DRY=dry, GPUS="4", JOBS="9"):
        at = next(i for i, word in enumerate(words) if word.endswith(".py"))
        files, flags = ([w for w in words[at:] if w.startswith("-") == f] for f in (False, True))
        launch = [] if dry or files[0] != "train.py" or "micro" in script else [
            "--standalone", "--nproc_per_node=4"]
        assert words[:at] == launch and tool == ("torchrun" if launch else "python")
        if files[0] == "train.py":
            cfg, name = load(TrainConfig, files[1:] + flags)
            shape(cfg)
            trained.add((name, cfg.seed))
            assert cfg.out_dir.endswith(f"/{name}" + f"_s{cfg.seed}" * (cfg.seed != 42))
            assert cfg.max_steps == (1 if dry else config(name).max_steps)
            assert not dry or cfg.n_embd == 240 and cfg.dataset == "microsynth"
            assert "micro" not in script or {cfg.muon_lr, cfg.adam_lr} == {0.02 if dry else 0.0123}
        elif files[0] == "sweep.py":
            options, _ = load(SweepConfig, flags)
            extra = [f"--{part}" for part in options.set.split(",") if part]
            cfg, name = load(TrainConfig, files[1:] + extra)
            shape(cfg)
            swept.add((name, options.param))
            assert type(getattr(cfg, options.param)) is float and options.steps
        else:
            assert files[0] in ("prepare.py", "analyze.py")
    listed = re.findall(r"^(train|tune) (\w+)(?:.*--seed=(\d+))?", text, re.M)
    assert trained == {(n, int(s or 42)) for what, n, s in listed if what == "train"}
    both = re.search(r'^arms="(.+)"', text, re.M)  # these at both rates, in a loop
    arms = {(n, p) for n in both[1].split() for p in ("adam_lr", "muon_lr")} if both else set()
    assert {n for n, _ in swept - arms} == {n for what, n, _ in listed if what == "tune"}
    assert arms <= swept and trained | swept


def test_a_script_skips_what_is_over_and_resumes_what_is_not(tmp_path):
    for name, event in (("san_web", "done"), ("ffn_web", "train")):
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "log.jsonl").write_text(f'{{"event": "{event}", "step": 1}}\n')
        (tmp_path / "out" / name / "ckpt_000001.pt").touch()
    (words,) = calls("fineweb.sh", tmp_path)
    assert "config/ffn_web.py" in words and words[-1] == "--resume"


@pytest.mark.parametrize("script", [s for s in SCRIPTS if "micro" not in s])
def test_scripts_state_tokens_and_hours(script):
    """The study's tokens/s per H100; shapes that it gives none for, by dense FLOPs."""
    text, hours = (ROOT / "runs" / script).read_text(), 0
    lines = re.findall(r"^(train|tune) (\w+).*# ([\d.]+)B tokens, ([\d.]+) GPU-h$", text, re.M)
    assert len(lines) == len(re.findall(r"^(?:train|tune) ", text, re.M)) > 0
    for what, name, tokens, stated in lines:
        cfg = config(name)
        steps = 4800 * CELLS[name] if what == "tune" else cfg.max_steps
        assert abs(float(tokens) * 1e9 / (steps * cfg.total_batch_size) - 1) < 0.01
        base, speed = ("ffn_param", 550e3) if cfg.use_ffn else ("san_param", 250e3)
        cost = (flops_per_token(shape(config(n)), 2048) for n in (name, base))
        assert abs(steps * cfg.total_batch_size * next(cost) / next(cost) / speed / 3600
                   / float(stated) - 1) < 0.01
        hours += float(stated)
    total = float(re.search(r"about ([\d,]+) GPU hours", text)[1].replace(",", ""))
    assert abs(hours / total - 1) < 0.01


def test_predictions_name_runs_that_exist():
    toml = pytest.importorskip("tomllib")
    found = toml.loads((ROOT / "predictions.toml").read_text())["prediction"]
    assert len({p["id"] for p in found}) == len(found) and sum("history" in p for p in found) == 9
    for p in (p for p in found if "history" not in p):
        assert p["statement"] and p["reason"] and p.get("low", -9) < p.get("high", 9)
        needs = {"delta": {"a", "b"}, "above": {"a", "b", "over"}, "diverges": {"a", "expect"},
                 "noise_floor": {"high"}}[p["quantity"]]
        bounds = {"low", "high"} & set(p) or p["quantity"] in ("above", "diverges")
        assert needs <= set(p) and bounds
        assert {q[k] for q in (p, *p.get("over", ())) for k in ("a", "b") if k in q} <= set(NAMES)
