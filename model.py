"""The attention-only transformer (SAN) and its feed-forward partner, in one implementation.

    python model.py                          # every arm: parameters, FLOPs per token, partners
    python model.py config/san_param.py --json

Source: A Controlled Study of Attention-Only Transformers, arXiv:2607.18363, section 2.
Shapes: B rows, T tokens, C n_embd, H n_head, K n_kv_head, D head_dim, F n_inner, V vocab_size.
"""

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from attention import attend, attention_layout, pick_kernel
from configurator import fail, load, model_fields

# -----------------------------------------------------------------------------
# Configuration


@dataclass(frozen=True)
class ModelConfig:
    """Shape of one arm. Raises ValueError, in words, for a shape that cannot work."""

    vocab_size: int = 16384  # token ids
    block_size: int = 2048  # tokens per row
    n_layer: int = 20
    n_embd: int = 512
    n_head: int = 8  # query heads
    n_kv_head: int = 4  # key/value heads, each shared by n_head / n_kv_head query heads
    use_ffn: bool = False  # a SwiGLU sublayer in each block
    n_inner: int = 0  # its hidden width; 0: 4 * n_embd
    residual: str = "gated"  # gated | rezero | standard | none
    norm: str = "zcrms"  # zcrms | rms
    qk_norm: bool = True  # norm on each query and key head
    post_norm: bool = False  # norm on a sublayer's output, before its gate
    rope_theta: float = 10000.0

    def __post_init__(self):
        for name in ("vocab_size", "block_size", "n_layer", "n_embd", "n_head", "n_kv_head"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.n_inner < 0:
            raise ValueError(f"n_inner is {self.n_inner}; give a width, or 0 for 4 * n_embd")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd {self.n_embd} does not divide by n_head {self.n_head}")
        if self.n_head % self.n_kv_head:
            raise ValueError(f"n_head {self.n_head} does not divide by n_kv_head {self.n_kv_head}")
        if self.head_dim % 2:
            raise ValueError(
                f"head width n_embd / n_head = {self.head_dim} is odd; RoPE turns pairs, "
                f"so it must be even"
            )
        for name, choices in (
            ("residual", ("gated", "rezero", "standard", "none")),
            ("norm", ("zcrms", "rms")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose {', '.join(choices)}")
        if self.rope_theta <= 0:
            raise ValueError(f"rope_theta is {self.rope_theta}; it must be positive")

    @property
    def head_dim(self):
        return self.n_embd // self.n_head

    @property
    def inner_dim(self):
        return self.n_inner or 4 * self.n_embd


# -----------------------------------------------------------------------------
# Norm, RoPE


class Norm(nn.Module):
    """RMS norm over the last axis, statistics in float32 or better.

    "zcrms" multiplies by 1 + gamma (gamma starts at 0), "rms" by a gain that starts at 1: the same
    function, but decay pulls the first to gain 1 and the second to gain 0. Source: section 2.
    """

    def __init__(self, dim, kind):
        super().__init__()
        self.offset = 1.0 if kind == "zcrms" else 0.0
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x):
        wide = x if x.dtype == torch.float64 else x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (wide * scale * (self.offset + self.weight)).to(x.dtype)


class Linear(nn.Linear):
    """A matrix without bias, (out, in), kept in its own precision and applied in its input's."""

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self):
        pass  # init_weights sets every parameter; the default would only spend random numbers.

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


def rope_table(block_size, head_dim, theta):
    """cos and sin of position * theta^(-2i/D): two float32 tensors (block_size, D / 2)."""
    freq = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.outer(torch.arange(block_size, dtype=torch.float64), freq)
    return angle.cos().float(), angle.sin().float()


def apply_rope(x, cos, sin):
    """Rotate each head vector by its position, half-split layout.

    x: (B, T, H, D). cos, sin: (T, D / 2). Returns the shape and dtype of x.
    Source: RoFormer, arXiv:2104.09864. Positions count from the row's start: scores depend on
    distance only, so a document needs no restart.
    """
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]  # (T, 1, D / 2)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


# -----------------------------------------------------------------------------
# Block


class Attention(nn.Module):
    """Grouped-query causal self-attention with a norm on each query and key head."""

    def __init__(self, cfg):
        super().__init__()
        self.head_dim = cfg.head_dim
        self.c_q = Linear(cfg.n_embd, cfg.n_embd)
        self.c_k = Linear(cfg.n_embd, cfg.n_kv_head * cfg.head_dim)
        self.c_v = Linear(cfg.n_embd, cfg.n_kv_head * cfg.head_dim)
        self.c_proj = Linear(cfg.n_embd, cfg.n_embd)
        self.q_norm = Norm(cfg.head_dim, cfg.norm) if cfg.qk_norm else nn.Identity()
        self.k_norm = Norm(cfg.head_dim, cfg.norm) if cfg.qk_norm else nn.Identity()

    def forward(self, u, cos, sin, layout):
        q, k, v = (
            rearrange(c(u), "b t (h d) -> b t h d", d=self.head_dim)
            for c in (self.c_q, self.c_k, self.c_v)
        )
        q = apply_rope(self.q_norm(q), cos, sin)
        k = apply_rope(self.k_norm(k), cos, sin)
        out = attend(q, k, v, layout)  # (B, T, H, D)
        return self.c_proj(rearrange(out, "b t h d -> b t (h d)"))  # (B, T, C)


class FFN(nn.Module):
    """SwiGLU: W_down(silu(W_gate u) * W_up u). Source: arXiv:2002.05202."""

    def __init__(self, cfg):
        super().__init__()
        self.c_gate = Linear(cfg.n_embd, cfg.inner_dim)
        self.c_up = Linear(cfg.n_embd, cfg.inner_dim)
        self.c_proj = Linear(cfg.inner_dim, cfg.n_embd)

    def forward(self, u):
        return self.c_proj(F.silu(self.c_gate(u)) * self.c_up(u))


class Block(nn.Module):
    """Attention, then (FFN arm only) SwiGLU, each between its norm and its residual."""

    def __init__(self, cfg):
        super().__init__()
        self.residual, self.use_ffn = cfg.residual, cfg.use_ffn
        self.norm_1 = Norm(cfg.n_embd, cfg.norm)
        self.attn = Attention(cfg)
        if cfg.use_ffn:
            self.norm_2 = Norm(cfg.n_embd, cfg.norm)
            self.ffn = FFN(cfg)
        for i in (1, 2) if cfg.use_ffn else (1,):
            if cfg.residual in ("gated", "rezero"):
                setattr(self, f"gate_{i}", nn.Parameter(torch.empty(())))
            if cfg.post_norm:
                setattr(self, f"post_norm_{i}", Norm(cfg.n_embd, cfg.norm))

    def join(self, x, out, i):
        """Add sublayer i's output to the stream, scaled by its gate."""
        if hasattr(self, f"post_norm_{i}"):
            out = getattr(self, f"post_norm_{i}")(out)
        if self.residual == "none":
            return out
        if self.residual == "standard":
            return x + out
        gate = getattr(self, f"gate_{i}")
        scale = torch.sigmoid(gate) if self.residual == "gated" else gate
        return x + scale.to(x.dtype) * out

    def forward(self, x, cos, sin, layout):
        x = self.join(x, self.attn(self.norm_1(x), cos, sin, layout), 1)
        if self.use_ffn:
            x = self.join(x, self.ffn(self.norm_2(x)), 2)
        return x


# -----------------------------------------------------------------------------
# Model


def loss_sums(x, weight, targets):
    """Cross-entropy and z-loss summed over the scored positions.

    x (B, T, C), weight (V, C), targets (B, T) with -1 where nothing is scored. Returns the sums of
    -log p(target) and of logsumexp(logits)^2 in nats, at least float32. Source: section 2.
    """
    logits = F.linear(x, weight.to(x.dtype))  # (B, T, V)
    wide = logits.to(torch.promote_types(x.dtype, torch.float32))
    lse = wide.logsumexp(-1)  # (B, T)
    picked = wide.gather(-1, targets.clamp(min=0)[..., None]).squeeze(-1)
    scored = targets >= 0
    return torch.where(scored, lse - picked, 0).sum(), torch.where(scored, lse.square(), 0).sum()


class Transformer(nn.Module):
    """Embedding scaled by sqrt(C), blocks, final norm, tied head. Source: section 2."""

    def __init__(self, cfg, seed=0):
        super().__init__()
        self.cfg = cfg
        self.wte = nn.Embedding(cfg.vocab_size, cfg.n_embd)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layer))
        self.norm_f = Norm(cfg.n_embd, cfg.norm)
        cos, sin = rope_table(cfg.block_size, cfg.head_dim, cfg.rope_theta)
        self.register_buffer("cos", cos, persistent=False)  # (block_size, D / 2)
        self.register_buffer("sin", sin, persistent=False)
        self.compute_dtype = torch.float32  # of activations; the weights keep their own
        self.kernel = "auto"  # see attention.py
        self.loss_sums = loss_sums  # train.py puts the compiled one here
        self.init_weights(seed)

    @torch.no_grad()
    def init_weights(self, seed):
        """Set every parameter from a generator of its own; raise on one that has no rule.

        wte, c_q, c_k, c_v, c_gate, c_up   normal, std 0.02
        c_proj (writes to the stream)      normal, std 0.02 / sqrt(2 * n_layer)
        gates, zcrms gamma                 0
        rms gain                           1
        """
        generator = torch.Generator().manual_seed(seed)
        for role, name, p in self.roles():
            if role in ("matrix", "embedding"):
                std = 0.02 / math.sqrt(2 * self.cfg.n_layer) if "c_proj" in name else 0.02
                if p.device.type != "meta":
                    p.copy_(torch.randn(p.shape, generator=generator) * std)
            else:
                p.fill_(1.0 if role == "gain" and self.cfg.norm == "rms" else 0.0)

    def roles(self):
        """(role, name, parameter) of every parameter: matrix, embedding, gain or gate."""
        table = {"wte": "embedding", "norm": "gain", "gate_1": "gate", "gate_2": "gate"}
        table |= {c: "matrix" for c in ("c_q", "c_k", "c_v", "c_proj", "c_gate", "c_up")}
        for name, p in self.named_parameters():
            part = name.removesuffix(".weight").split(".")[-1]
            role = table.get("norm" if "norm" in part else part)
            if role is None:
                raise ValueError(f"parameter {name} has no role: say in Transformer.roles how to "
                                 f"initialise and optimise it")
            yield role, name, p

    def embed(self, idx):
        """Token ids (B, T) to the stream's start (B, T, C) in compute_dtype."""
        return (self.wte(idx) * math.sqrt(self.cfg.n_embd)).to(self.compute_dtype)

    def hidden(self, idx, cu_seqlens=None):
        """The normed stream after the last block, (B, T, C). Raises ValueError on a bad T."""
        B, T = idx.shape
        if not 1 <= T <= self.cfg.block_size:
            raise ValueError(f"a row of {T} tokens does not fit block_size {self.cfg.block_size}")
        if cu_seqlens is None:
            cu_seqlens = torch.arange(0, B * T + 1, T, dtype=torch.int32, device=idx.device)
        x = self.embed(idx)
        kernel = pick_kernel(x, T) if self.kernel == "auto" else self.kernel
        layout = attention_layout(cu_seqlens, B, T, kernel)
        for block in self.blocks:
            x = block(x, self.cos[:T], self.sin[:T], layout)
        return self.norm_f(x)

    def forward(self, idx, cu_seqlens=None, targets=None):
        """Logits, or with targets the two sums of loss_sums.

        idx: (B, T) token ids. cu_seqlens: int32 cumulative document ends over the flattened
        tokens, first 0, last B * T, repeats of B * T as padding; None: each row one document.
        targets: (B, T), -1 where nothing is scored.
        """
        x = self.hidden(idx, cu_seqlens)
        if targets is None:
            return F.linear(x, self.wte.weight.to(x.dtype))  # (B, T, V)
        return self.loss_sums(x, self.wte.weight, targets)


# -----------------------------------------------------------------------------
# Accounting


def num_params(cfg):
    """(all, non-embedding) parameters; the tied head counts once. Exact: checked in the tests."""
    C, D = cfg.n_embd, cfg.head_dim
    sublayer = C + C * cfg.post_norm + (cfg.residual in ("gated", "rezero"))
    layer = 2 * C * C + 2 * C * D * cfg.n_kv_head + 2 * D * cfg.qk_norm + sublayer
    if cfg.use_ffn:
        layer += 3 * C * cfg.inner_dim + sublayer
    inside = cfg.n_layer * layer + C
    return inside + cfg.vocab_size * C, inside


def mean_context(cfg, convention, doc_len=870):
    """Keys a query meets, averaged over a row: all T (dense), T / 2 (causal), or (document) those
    of its own document, itself included, for documents of doc_len tokens laid end to end."""
    T = cfg.block_size
    if convention == "document":
        return sum((1 - i / T) * (1 - i / doc_len) for i in range(min(T, math.ceil(doc_len))))
    if convention not in ("dense", "causal"):
        raise ValueError(f"convention is {convention!r}; choose dense, causal or document")
    return T if convention == "dense" else T / 2


def flops_per_token(cfg, context):
    """Training FLOPs per token = 3 x forward; 2 per weight that multiplies a token (the tied head
    counts, the embedding's look-up not) and 4 * C per key met. context: keys, see mean_context."""
    C, F_ = cfg.n_embd, cfg.inner_dim
    layer = 4 * C * C + 4 * C * cfg.head_dim * cfg.n_kv_head + 4 * context * C
    return 3 * (cfg.n_layer * (layer + 6 * C * F_ * cfg.use_ffn) + 2 * cfg.vocab_size * C)


def flops_by_convention(cfg, doc_len=870):
    """flops_per_token under each named convention of mean_context."""
    return {c: flops_per_token(cfg, mean_context(cfg, c, doc_len))
            for c in ("dense", "causal", "document")}


def partner(cfg, axis):
    """The other arm's config at equal "params" (nearest), "flops" (dense; the most layers that cost
    no more, as the study chose) or "depth", and its cost over ours on that axis."""
    def cost(c):
        if axis == "params":
            return num_params(c)[0]
        return c.n_layer if axis == "depth" else flops_per_token(c, c.block_size)

    depths = range(1, 8 * cfg.n_layer + 1)
    other = [replace(cfg, use_ffn=not cfg.use_ffn, n_layer=n) for n in depths]
    if axis == "flops":
        other = [c for c in other if cost(c) <= cost(cfg)][-1:] or other[:1]
    best = min(other, key=lambda c: abs(cost(c) - cost(cfg)))
    return best, cost(best) / cost(cfg)


def corpus_vocab(run):
    """vocab_size of a run that leaves it to its corpus: what prepare.py wrote, or would write."""
    meta = Path(run.data_dir) / run.dataset / "meta.json"
    if run.vocab_size or not meta.is_file():
        return run.vocab_size or (1024 if run.dataset.startswith("micro") else 16384)
    return json.loads(meta.read_text(encoding="utf-8"))["vocab_size"]


def arm(run, name):
    """What the table says of one run."""
    cfg = ModelConfig(**model_fields(run, ModelConfig) | {"vocab_size": corpus_vocab(run)})
    total, inside = num_params(cfg)
    matches = {axis: partner(cfg, axis) for axis in ("params", "flops", "depth")}
    return {"name": name, "params": total, "params_non_embedding": inside,
            "flops_per_token": flops_by_convention(cfg), "partner": run.partner or None,
            "match": {a: {"n_layer": c.n_layer, "ratio": r} for a, (c, r) in matches.items()}}


def main(argv):
    """Print a row an arm. argv: config files (default: all of config/), --json."""
    from train import TrainConfig  # imports this file

    here = Path(__file__).parent
    files = [a for a in argv if a != "--json"] or sorted(map(str, here.glob("config/*.py")))
    try:
        rows = [arm(*load(TrainConfig, [file])) for file in files]
    except ValueError as error:
        fail(error)
    if "--json" in argv:
        print(json.dumps(rows, indent=1))
        return
    print("Training FLOPs per token (3 x forward, head included) in three conventions; document:",
          "870 tokens each.\nPartners: layers of the other arm at equal parameters, FLOPs (dense,",
          "not above) and depth, and their cost over this arm's.")
    print(f"{'arm':22}{'parameters':>12}{'non-embed.':>12}{'dense':>9}{'causal':>9}{'document':>9}"
          "   partners")
    for r in rows:
        match = "  ".join(f"{m['n_layer']} ({m['ratio']:.3f})" for m in r["match"].values())
        mega = "".join(f"{f / 1e6:8.1f}M" for f in r["flops_per_token"].values())
        print(f"{r['name']:22}{r['params']:12,}{r['params_non_embedding']:12,}{mega}   {match}")


if __name__ == "__main__":
    main(sys.argv[1:])
