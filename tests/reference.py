"""The model of SPEC section 1 once more, in float64, as plainly as possible; tools of the tests."""
import itertools
import math

import torch
import torch.nn.functional as F

from model import ModelConfig, Transformer

TINY = dict(vocab_size=29, block_size=32, n_layer=2, n_embd=16, n_head=4, n_kv_head=2)
CUTS = [0, 3, 4, 12, 12, 20, 24]  # documents of two rows of 12, with an empty one, as padding makes


def generator(seed):
    return torch.Generator().manual_seed(seed)


def make(seed=0, spread=0.4, **options):
    """A model whose weights, gains and gates all differ from their start: there much is hidden."""
    model, g = Transformer(ModelConfig(**{**TINY, **options}), seed), generator(seed)
    with torch.no_grad():
        for p in model.parameters():
            scale = p.shape[1] ** -0.5 if p.ndim == 2 else 1.0
            p += spread * scale * torch.randn(p.shape, generator=g)
    return model


def wide(model):
    model.double()
    model.compute_dtype, model.kernel = torch.float64, "dense"
    return model


def tokens(B, T, V=29, seed=1):
    return torch.randint(V, (B, T), generator=generator(seed))


def cut(*ends):
    return torch.tensor(ends, dtype=torch.int32)


def far(a, b):
    """Largest difference, on the scale of b or 1, whichever is larger."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).abs().max() / b.abs().max().clamp(min=1))


def grads(model, out, seed=2):
    """Gradients of every parameter when out is pulled in a fixed random direction."""
    model.zero_grad()
    out.backward(torch.randn(out.shape, generator=generator(seed)).to(out))
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def probe(model, idx, replace=(), cu=None):
    """Run with some modules' outputs replaced; returns every module's first input and output."""
    seen, replace, hooks = {}, dict(replace), []

    def hook(name):
        def note(module, args, out):
            seen[name] = args[0], replace.get(name, out)
            return seen[name][1]
        return note

    for name, module in model.named_modules():
        hooks += [module.register_forward_hook(hook(name))] if name else []
    model(idx, cu)
    for h in hooks:
        h.remove()
    return seen


# ---- the reference ----


def ref_norm(z, w, cfg):
    gain = 1 + w if cfg.norm == "zcrms" else w
    return gain * z / (z.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def ref_rope(z, theta):
    half = z.shape[-1] // 2
    angle = torch.arange(len(z)).double()[:, None] * theta ** (-torch.arange(half).double() / half)
    cos, sin = angle.cos().float(), angle.sin().float()  # the model's tables are float32 throughout
    a, b = z[:, :half], z[:, half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def ref_attention(u, w, p, mask, cfg):
    D, heads = cfg.n_embd // cfg.n_head, []
    for h in range(cfg.n_head):
        kv = h // (cfg.n_head // cfg.n_kv_head)
        q = u @ w[p + "c_q.weight"][h * D:(h + 1) * D].T
        k = u @ w[p + "c_k.weight"][kv * D:(kv + 1) * D].T
        v = u @ w[p + "c_v.weight"][kv * D:(kv + 1) * D].T
        if cfg.qk_norm:
            q = ref_norm(q, w[p + "q_norm.weight"], cfg)
            k = ref_norm(k, w[p + "k_norm.weight"], cfg)
        q, k = ref_rope(q, cfg.rope_theta), ref_rope(k, cfg.rope_theta)
        scores = (q @ k.T / math.sqrt(D)).masked_fill(~mask, -math.inf)
        heads.append(torch.softmax(scores, -1) @ v)
    return torch.cat(heads, -1) @ w[p + "c_proj.weight"].T


def ref_ffn(u, w, p):
    gate, up = u @ w[p + "c_gate.weight"].T, u @ w[p + "c_up.weight"].T
    return (F.silu(gate) * up) @ w[p + "c_proj.weight"].T


def ref_logits(w, cfg, idx, cu):
    doc, out = torch.bucketize(torch.arange(idx.numel()), cu[1:].long(), right=True), []
    for row, d in zip(idx, doc.view(idx.shape)):
        mask = (d[:, None] == d[None, :]).tril()
        x = w["wte.weight"][row] * math.sqrt(cfg.n_embd)
        for n, s in itertools.product(range(cfg.n_layer), (1, 2) if cfg.use_ffn else (1,)):
            p = f"blocks.{n}."
            u = ref_norm(x, w[f"{p}norm_{s}.weight"], cfg)
            y = ref_attention(u, w, p + "attn.", mask, cfg) if s == 1 else ref_ffn(u, w, p + "ffn.")
            if cfg.post_norm:
                y = ref_norm(y, w[f"{p}post_norm_{s}.weight"], cfg)
            if cfg.residual == "gated":
                y = torch.sigmoid(w[f"{p}gate_{s}"]) * y
            if cfg.residual == "rezero":
                y = w[f"{p}gate_{s}"] * y
            x = y if cfg.residual == "none" else x + y
        out.append(ref_norm(x, w["norm_f.weight"], cfg) @ w["wte.weight"].T)
    return torch.stack(out)


def double_weights(model):
    return {k: v.detach().double().requires_grad_() for k, v in model.named_parameters()}
