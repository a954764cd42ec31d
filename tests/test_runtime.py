"""runtime.py, and train.py as it is started: ranks, nodes, devices, compilers."""
import json
import os
import platform
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import tiny
import torch
import torch.distributed as dist

import checkpoint
import model
import runtime
import train

HERE = Path(__file__).parent.parent


def start(*command, **env):
    """A command in the repository's folder; its output can be read."""
    for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        env.setdefault(key, None)
    env = {k: v for k, v in {**os.environ, "OMP_NUM_THREADS": "1", **env}.items() if v is not None}
    return subprocess.Popen([sys.executable, *map(str, command)], cwd=HERE, env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


# ---------------------------------------------------------------------------- from the shell

def arm(name, folder):
    """Arguments for two steps of a micro arm in its own shape, on the small corpus."""
    flags = dict(dataset="tiny", data_dir=tiny.corpora(), out_dir=folder, max_steps=2, log_every=1,
                 total_batch_size=512, device_batch_size=2, eval_tokens=128, compile=False)
    return [f"config/{name}.py", *(f"--{key}={value}" for key, value in flags.items())]


def test_two_nodes_train_an_arm_write_once_and_end_well(tmp_path, monkeypatch):
    """Two agents on loopback, each with an output folder of its own."""
    agents, port = [], free_port()
    for node in ("node0", "node1"):
        launch = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1",
                  "--rdzv-id=tiny", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
        agents.append(start(*launch, "train.py", *arm("micro_ffn_param", tmp_path / node)))
    texts = [agent.communicate(timeout=120)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], texts
    (folder,) = tmp_path.iterdir()  # torchrun gives out the ranks; the other one wrote nothing
    assert json.loads((folder / "run.json").read_text())["world_size"] == 2
    assert [line["step"] for line in tiny.log(folder, "train")] == [0, 1]
    monkeypatch.chdir(HERE)
    assert tiny.call(arm("micro_ffn_param", tmp_path / "alone")) == 0
    tiny.assert_close_runs(tmp_path / "alone", folder)


def test_an_arm_starts_from_the_shell(tmp_path):
    process = start("train.py", *arm("micro_san", tmp_path))
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 0, text
    assert "micro_san: SAN arm, 10 layers" in text and "done: 1,024 tokens" in text
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["name"] == "micro_san"
    assert about["params"] == model.num_params(model.ModelConfig(**about["model"]))[0]
    assert about["config"]["warmup_steps"] == 0 and about["config"]["dtype"] == "float32"
    assert about["command"].startswith("python train.py config/micro_san.py --dataset=tiny")


def test_a_missing_embedded_corpus_is_made_first(tmp_path, monkeypatch):
    made = []

    def build(source, paths, name, data_dir):
        made.append((source, paths, name, str(data_dir)))
        os.rename(tmp_path / "tiny", tmp_path / "microsynth")

    tiny.copy(tiny.corpora() / "tiny", tmp_path / "tiny")
    monkeypatch.setattr(train.prepare, "build", build)
    for resume in ("", "newest"):
        assert tiny.run(tmp_path / "run", dataset="microsynth", data_dir=tmp_path, max_steps=0,
                        resume=resume) == 0
    assert made == [("microsynth", [], "microsynth", str(tmp_path))]


# ---------------------------------------------------------------------------- ranks and signals

def slow_rank(rank):
    """Everything that one rank does alone takes longer than the others would wait."""
    limit = dist.init_process_group
    dist.init_process_group = lambda backend, timeout: limit(backend, timeout=timedelta(seconds=30))
    for owner, name, who in ((checkpoint, "write", 0), (train, "evaluate", 1),
                             (train.Trainer, "wrap", 1)):
        def slow(*args, original=getattr(owner, name), who=who, **kwargs):
            if rank == who:
                time.sleep(0.5)
            return original(*args, **kwargs)
        setattr(owner, name, slow)


def test_ranks_wait_for_the_slow_one_and_the_limit_is_hours(tmp_path, monkeypatch):
    assert tiny.wait(tiny.start(tmp_path, 2, slow_rank, max_steps=1, device_batch_size=2)) == [0, 0]
    asked = {}
    monkeypatch.setattr(dist, "init_process_group", lambda *a, **k: asked.update(k, backend=a[0]))
    ranks = runtime.Ranks()
    ranks.world = 2
    ranks.start(torch.device("cpu"))
    assert asked == {"backend": "gloo", "timeout": timedelta(hours=2)}
    for there, backend in ((True, "cpu:gloo,cuda:nccl"), (False, "gloo")):
        monkeypatch.setattr(dist, "is_nccl_available", lambda: there)
        ranks.start(torch.device("cuda", 0))
        assert asked["backend"] == backend


@pytest.mark.parametrize("env", [dict(RANK="0"), dict(WORLD_SIZE="2", RANK="1")])
def test_half_set_launcher_variables_are_refused(tmp_path, monkeypatch, capsys, env):
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    assert tiny.run(tmp_path) == 2
    error = capsys.readouterr().err
    assert "only partly set" in error and error.count("\n") == 1


def fail_on_rank_0(rank):
    def save(*args):
        raise checkpoint.CheckpointError("no room here")
    if rank == 0:
        checkpoint.save = save


def test_an_error_of_rank_0_ends_all(tmp_path):
    assert tiny.wait(tiny.start(tmp_path, 2, fail_on_rank_0, device_batch_size=2)) == [2, 2]
    for rank in (0, 1):
        assert "no room here" in (tmp_path / f"rank{rank}.txt").read_text()


def test_a_log_is_cut_where_a_resume_begins(tmp_path):
    lines = [dict(event="branch", step=3), dict(event="save", step=3), dict(event="train", step=3),
             dict(event="train", step=4), dict(event="save", step=5), dict(event="train", step=5)]
    text = "".join(json.dumps(line) + "\n" for line in lines)

    def kept(step):
        (tmp_path / "log.jsonl").write_text(text + '{"event": "train", "st')
        runtime.Log(tmp_path, True, step).write("resume", step)
        return [(e["event"], e["step"]) for e in
                map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())]
    assert kept(3) == [("branch", 3), ("resume", 3)]
    assert kept(5) == [("branch", 3), ("save", 3), ("train", 3), ("train", 4), ("resume", 5)]
    assert len(kept(6)) == 7 and kept(None) == [("resume", None)]


# ---------------------------------------------------------------------------- devices, compilers

def test_device_and_precision(monkeypatch):
    cfg = train.TrainConfig
    pick = lambda **options: runtime.pick_device(cfg(**options), runtime.Ranks())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for amx, avx512 in ((True, False), (False, True), (False, False)):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
        fast = torch.bfloat16 if amx or avx512 else torch.float32
        assert pick() == (torch.device("cpu"), fast)
    assert pick(dtype="float32")[1] == torch.float32
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    for fast, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: fast)
        assert pick() == (torch.device("cuda", 0), dtype)


def test_peak_of_known_devices_only(monkeypatch):
    for name, peak in (("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12),
                       ("NVIDIA A100-SXM4-40GB", 312e12), ("NVIDIA Future", None)):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        assert runtime.peak_flops(torch.device("cuda", 0)) == peak
    assert runtime.peak_flops(torch.device("cpu")) is None


def test_speed_and_mfu_are_of_all_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "peak_flops", lambda device: 1e9)
    assert tiny.run(tmp_path, max_steps=2) == 0
    for line in tiny.log(tmp_path, "train", clock=True):
        assert line["tok_per_sec"] == pytest.approx(512 / line["dt"])
        assert line["mfu"] == pytest.approx(line["flops_per_sec"] / 1e9)
        per_token = line["flops_per_sec"] / line["tok_per_sec"]
        cfg = model.ModelConfig(**tiny.state(tmp_path)["model_config"])
        assert model.flops_per_token(cfg, 1) < per_token < model.flops_per_token(cfg, 64)


@pytest.mark.parametrize("system, device", [("Windows", "cpu"), ("Darwin", "mps")])
def test_compile_is_off_where_it_is_missing(monkeypatch, system, device):
    said = []
    monkeypatch.setattr(platform, "system", lambda: system)
    net = model.Transformer(model.ModelConfig(9, n_layer=1, n_embd=8, n_head=1, n_kv_head=1))
    runtime.compile_model(net, train.TrainConfig(), torch.device(device), said.append)
    assert said == [f"compile: off on {system}/{device}, running eager"]


def test_a_missing_compiler_means_eager_and_one_line(tmp_path):
    process = start("train.py", *tiny.argv(tmp_path / "run", compile=True, max_steps=2),
                    CXX="no-such-compiler", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "empty"))
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 0, text
    (line,) = [line for line in text.splitlines() if line.startswith("compile:")]
    assert "running eager; it needs a C++ compiler (CXX)" in line
    assert "Traceback" not in text and text.count("\n") < 15


def test_a_cache_folder_that_cannot_be_made_names_the_variable(tmp_path):
    process = start("train.py", *tiny.argv(tmp_path / "run"),
                    TORCHINDUCTOR_CACHE_DIR="/dev/null/none")
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 2 and text.count("\n") == 1 and "TORCHINDUCTOR_CACHE_DIR" in text
