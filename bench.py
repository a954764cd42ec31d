"""How fast is this machine at this model? Needs no data.

    python bench.py                                            # SAN base: a whole training step
    python bench.py config/micro_san.py
    python bench.py --compare attention                        # every attention path, by length
    python bench.py --compare optimizer                        # Muon beside torch.optim.Muon
    python bench.py --compare loader                           # a batch of 1e4 to 1e7 documents

Every figure is the best of --repeats in one process, and ratios are between figures of one run:
shared machines are noisy, and the best is what the code can do. FLOPs by the document convention.
"""

import base64
import dataclasses
import json
import platform
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import attention
import dataset
import train
from configurator import ConfigError, UserError, fail, load, model_fields
from model import ModelConfig, Transformer, corpus_vocab, flops_per_token
from muon import Muon
from runtime import Ranks, compile_model, pick_device


@dataclass(frozen=True)
class BenchConfig(train.TrainConfig):
    """Options of bench.py, besides all of train.py's"""

    compare: str = ""  # attention | optimizer | loader; empty: a training step
    doc_len: int = 700  # tokens per document
    repeats: int = 5
    device_batch_size: int = 1


def best(fn, repeats, device):
    """Shortest time of fn() in seconds, after one call to warm up."""
    def once():
        start = time.perf_counter()
        fn()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    once()
    return min(once() for _ in range(repeats))


def documents(B, T, doc_len, device):
    """cu_seqlens of B rows: documents of half to one and a half doc_len, cut at the rows' ends."""
    rng = np.random.default_rng(0)
    ends = {r * T for r in range(B + 1)}
    at = 0
    while doc_len < T and at < B * T:
        at += int(rng.integers(doc_len // 2, doc_len * 3 // 2 + 1))
        ends.add(min(at, B * T))
    return torch.tensor(sorted(ends), dtype=torch.int32, device=device)


def pairs(cu):
    """Query-key pairs of a layout."""
    n = cu.diff().double()
    return float((n * (n + 1)).sum() / 2)


def matmul_peak(cfg, dtype, device, repeats):
    """Best FLOP/s of plain products at the block's shapes: what the arithmetic could reach."""
    rows, C = cfg.device_batch_size * cfg.block_size, cfg.n_embd
    peak = 0.0
    for n in (C, 4 * C):
        x, w = (torch.randn(m, C, dtype=dtype, device=device) for m in (rows, n))
        peak = max(peak, 2 * rows * C * n / best(lambda: F.linear(x, w), 4 * repeats, device))
    return peak


def bench_step(cfg, device, dtype):
    """Forward, backward, optimizer, whole step: ms, tokens/s, FLOP/s, share of the matmul peak."""
    B, T = cfg.device_batch_size, cfg.block_size
    peak = matmul_peak(cfg, dtype, device, cfg.repeats)
    began = time.perf_counter()
    model_cfg = ModelConfig(**model_fields(cfg, ModelConfig))
    model = Transformer(model_cfg, seed=cfg.seed).to(device)
    model.compute_dtype = dtype
    optimizer = train.make_optimizer(model, cfg)
    if cfg.compile:
        compile_model(model, cfg, device, print)
    idx = torch.randint(cfg.vocab_size, (B, T), device=device)
    cu = documents(B, T, cfg.doc_len, device)

    def forward():
        nll, zsq = model(idx, cu, idx)
        return (nll + cfg.z_loss * zsq) / idx.numel()

    def gradients():
        model.zero_grad(set_to_none=True)
        forward().backward()

    def step():
        gradients()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip)
        optimizer.step()

    step()
    first = time.perf_counter() - began
    t = {"forward": best(forward, cfg.repeats, device),
         "forward + backward": best(gradients, cfg.repeats, device),
         "optimizer": best(optimizer.step, cfg.repeats, device),
         "step": best(step, cfg.repeats, device)}
    flops = flops_per_token(model_cfg, pairs(cu) / (B * T)) * B * T
    memory = (torch.cuda.max_memory_allocated() if device.type == "cuda"
              else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    print(f"{B} x {T} tokens, documents of about {cfg.doc_len}; "
          f"matmul peak {peak / 1e9:,.0f} GFLOP/s")
    print(f"first step after {first:.1f} s; peak memory {memory / 2**30:.2f} GiB")
    for name, seconds in t.items():
        print(f"{name:20}{seconds * 1e3:10.1f} ms")
    rate, speed = B * T / t["step"], flops / t["step"]
    print(f"{rate:,.0f} tokens/s, {speed / 1e9:,.0f} GFLOP/s = {speed / peak:.1%} of the peak")
    # One update serves all micro-steps of a training step: at full scale it hardly counts.
    n = max(1, cfg.total_batch_size // (B * T))
    whole = n * t["forward + backward"] + t["optimizer"]
    print(f"from these, a step of {n * B * T:,} tokens: {whole:,.1f} s, {n * B * T / whole:,.0f} "
          f"tokens/s, {n * flops / whole / peak:.1%} of the peak, optimizer "
          f"{t['optimizer'] / whole:.2%}")
    return {"tok_per_sec": rate, "flops_per_sec": speed, "peak": peak, "first_step": first, **t}


def bench_attention(cfg, device, dtype):
    """Forward and backward ms of one layer's attention at fixed tokens, by document length."""
    B, T, D = cfg.device_batch_size, cfg.block_size, cfg.n_embd // cfg.n_head
    paths = ["varlen", "flex", "dense"] if device.type == "cuda" else ["document", "dense"]
    q, k, v = (torch.randn(B, T, h, D, dtype=dtype, device=device, requires_grad=True)
               for h in (cfg.n_head, cfg.n_kv_head, cfg.n_kv_head))
    attend = torch.compile(attention.attend) if device.type == "cuda" else attention.attend
    print(f"{'tokens/document':>16}" + "".join(f"{p + ' fwd':>14}{'bwd':>8}" for p in paths))
    rows = []
    for doc_len in (n for n in (64, 128, 256, 512, 1024, 2048, 4096) if n <= T):
        line = f"{doc_len:16}"
        for path in paths:
            cu = documents(B, T, doc_len, device)
            layout = attention.attention_layout(cu, B, T, path)
            out = attend(q, k, v, layout)
            grad = torch.randn_like(out)
            fwd = best(lambda: attend(q, k, v, layout), cfg.repeats, device)
            both = best(lambda: attend(q, k, v, layout).backward(grad), cfg.repeats, device)
            line += f"{fwd * 1e3:14.2f}{(both - fwd) * 1e3:8.2f}"
            rows.append({"doc_len": doc_len, "path": path, "forward": fwd, "backward": both - fwd})
        print(line)
    return rows


def bench_optimizer(cfg, device, dtype):
    """One step on the block matrices: ours (both orders) beside torch.optim.Muon."""
    model = Transformer(ModelConfig(**model_fields(cfg, ModelConfig))).to(device)
    matrices = [p for role, _, p in model.roles() if role == "matrix"]
    for p in matrices:
        p.grad = torch.randn_like(p)
    ours = {order: Muon([{"kind": "muon", "params": matrices, "lr": 1e-4, "order": order}])
            for order in ("momentum_first", "orthogonalize_first")}
    theirs = torch.optim.Muon(matrices, lr=1e-4, weight_decay=0.0)
    t = {name: best(o.step, cfg.repeats, device) for name, o in ours.items()}
    t["torch.optim.Muon"] = best(theirs.step, cfg.repeats, device)
    # The products of five Newton-Schulz steps bound every implementation of them.
    flops = sum(5 * (4 * n * n * m + 2 * n**3) for n, m in (sorted(p.shape) for p in matrices))
    peak = matmul_peak(cfg, torch.bfloat16, device, cfg.repeats)
    for name, seconds in t.items():
        ratio, share = t["torch.optim.Muon"] / seconds, flops / seconds / peak
        print(f"{name:22}{seconds * 1e3:10.1f} ms   {ratio:.2f} x torch's rate, "
              f"{share:.0%} of the matmul peak")
    return t


def bench_loader(cfg, device, dtype):
    """Opening a corpus and reading a batch, on sparse files of the right size."""
    rows = []
    for n_docs in (10_000, 100_000, 1_000_000, 10_000_000):
        with tempfile.TemporaryDirectory() as folder:
            fake_corpus(Path(folder), n_docs, cfg.doc_len)
            began = time.perf_counter()
            data = dataset.Dataset(folder)
            packing = dataset.Packing(data, data.split("train"), cfg.block_size, cfg.seed)
            packing.read(np.arange(1))
            opened = time.perf_counter() - began
            draw = np.random.default_rng(0)
            step = max(1, packing.rows_per_epoch - cfg.device_batch_size)

            def batch():
                start = int(draw.integers(step))
                read = packing.read(start + np.arange(cfg.device_batch_size))
                dataset.make_batch(*read, 16 * cfg.device_batch_size)

            took = best(batch, 20 * cfg.repeats, device)
        print(f"{n_docs:12,} documents: open {opened:6.2f} s, "
              f"batch of {cfg.device_batch_size} rows {took * 1e3:8.3f} ms")
        rows.append({"n_docs": n_docs, "open": opened, "batch": took})
    return rows


def fake_corpus(folder, n_docs, doc_len):
    """A corpus in the right format whose tokens are holes, but for each document's ends."""
    ends = np.arange(1, n_docs + 1, dtype=np.int64) * doc_len
    ends.tofile(folder / "doc_ends.bin")
    np.zeros(n_docs, np.uint8).tofile(folder / "labels.bin")
    with open(folder / "tokens.bin", "wb") as file:
        file.truncate(int(ends[-1]) * 2)
    tokens = np.memmap(folder / "tokens.bin", np.uint16, "r+")
    some = np.linspace(0, n_docs - 1, 100).astype(int)  # those that Dataset looks at
    tokens[ends[some] - doc_len], tokens[ends[some] - 1] = 256, 257
    specials = {name: 256 + i for i, name in enumerate(dataset.SPECIALS)}
    ranks = [base64.b64encode(bytes([i])).decode() for i in range(256)]
    text = json.dumps({"pattern": ".", "specials": specials, "ranks": ranks})
    (folder / "tokenizer.json").write_text(text)
    meta = {"format": 1, "name": "fake", "dtype": "uint16", "n_docs": n_docs, "labels": ["text"],
            "n_tokens": int(ends[-1]), "vocab_size": 262,
            "files": {"tokenizer.json": {"sha256": dataset.sha256(folder / "tokenizer.json")}}}
    (folder / "meta.json").write_text(json.dumps(meta))


def main(argv):
    cfg, name = load(BenchConfig, argv)
    if cfg.compare not in ("", "attention", "optimizer", "loader"):
        raise ConfigError(f"compare is {cfg.compare!r}; choose attention, optimizer or loader")
    if not cfg.vocab_size:  # without a config it is the base size, on no corpus
        cfg = dataclasses.replace(cfg, vocab_size=corpus_vocab(cfg) if name else 16384)
    device, dtype = pick_device(cfg, Ranks())
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    print(f"{name or 'SAN base'} on {device.type} {where or platform.machine()}, "
          f"{torch.get_num_threads()} threads, {str(dtype).removeprefix('torch.')}, "
          f"torch {torch.__version__}")
    {"": bench_step, "attention": bench_attention, "optimizer": bench_optimizer,
     "loader": bench_loader}[cfg.compare](cfg, device, dtype)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        fail(error)
