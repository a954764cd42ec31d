"""Causal attention within documents: one entry point, attend(), and the kernels behind it.

varlen (CUDA, half precision), document (CPU; cost follows the documents), dense (a mask; anywhere),
flex (CUDA, for comparison). All take the same thing: q, k, v and the cumulative document ends.
Apart from model.py because it changes with kernels and torch versions, not with the science.
Shapes: B rows, T tokens, N = B * T, H query heads, K key/value heads, D head width.
"""

import functools
import importlib.util
import inspect

import torch
import torch.nn.functional as F
from einops import rearrange, repeat

KERNELS = ("document", "varlen", "dense", "flex")
# Set by _load: importing these needs a compiler cache, which not every machine can write.
varlen_attn = flex_attention = create_block_mask = None
varlen_has_gqa = False
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _documents(cu_seqlens):
    """Start and end of each document; padding is empty."""
    cu = cu_seqlens.tolist()
    return [(s, e) for s, e in zip(cu, cu[1:]) if e > s]


def _heads(x, s, e):
    """The tokens of one document in x (N, H, D) as (1, H, length, D)."""
    return x[s:e].transpose(0, 1)[None]


@torch.library.custom_op("san::attend_documents", mutates_args=())
def document_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal flash attention document by document on a CPU: work follows the documents.

    q (N, H, D); k, v (N, K, D); cu_seqlens int32, cumulative ends, first 0, last N.
    Returns (N, H, D) and each query's log-sum-exp (N, H). Opaque to the compiler, so neither
    the loop nor a new layout is ever traced.
    """
    out, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:2], dtype=_wide(q))
    for s, e in _documents(cu_seqlens):
        o, stats = _flash(_heads(q, s, e), _heads(k, s, e), _heads(v, s, e), 0.0, True)
        out[s:e], lse[s:e] = o[0].transpose(0, 1), stats[0].T
    return out, lse


def _wide(x):
    return torch.promote_types(x.dtype, torch.float32)


@document_attention.register_fake
def _(q, k, v, cu_seqlens):
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=_wide(q))


@torch.library.custom_op("san::attend_documents_backward", mutates_args=())
def document_attention_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    cu_seqlens: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grads = tuple(torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    for s, e in _documents(cu_seqlens):
        # measured: to 320 tokens float32 is the faster, at 96 tokens 3 times, at 256 1.2 times.
        dtype = lse.dtype if e - s <= 320 else q.dtype
        g, o, qd, kd, vd = (_heads(x, s, e).to(dtype) for x in (grad, out, q, k, v))
        rows = _flash_backward(g, qd, kd, vd, o, lse[s:e].T[None], 0.0, True)
        for x, row in zip(grads, rows):
            x[s:e] = row[0].transpose(0, 1)
    return grads


@document_attention_backward.register_fake
def _(grad, q, k, v, out, lse, cu_seqlens):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save_for_backward(ctx, inputs, output):
    ctx.save_for_backward(*inputs, *output)


def _document_attention_grad(ctx, grad, _):
    q, k, v, cu_seqlens, out, lse = ctx.saved_tensors
    return *document_attention_backward(grad, q, k, v, out, lse, cu_seqlens), None


document_attention.register_autograd(_document_attention_grad, setup_context=_save_for_backward)


@functools.cache
def _load():
    """Import the CUDA kernels; FlashAttention 3 behind varlen_attn where it is installed."""
    global varlen_attn, flex_attention, create_block_mask, varlen_has_gqa
    from torch.nn.attention import flex_attention as flex
    from torch.nn.attention import varlen

    varlen_attn = varlen.varlen_attn
    flex_attention, create_block_mask = flex.flex_attention, flex.create_block_mask
    varlen_has_gqa = "enable_gqa" in inspect.signature(varlen_attn).parameters  # from 2.12 on
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    if hopper and importlib.util.find_spec("flash_attn_interface"):
        torch.nn.attention.activate_flash_attention_impl("FA3")


def attention_layout(cu_seqlens, B, T, kernel):
    """What attend() needs to know about the documents of a batch, built once for all layers.

    cu_seqlens: int32 cumulative document ends over the flattened (B, T) tokens, padded with B * T;
    each row starts a document, also where it goes on with the last row's (no kernel checks it).
    Returns cu_seqlens itself (kernels "document" on a CPU, "varlen" on CUDA), a bool mask
    (B, 1, T, T) ("dense") or a BlockMask ("flex").
    """
    if kernel not in KERNELS:
        raise ValueError(f"kernel is {kernel!r}; choose auto, {', '.join(KERNELS)}")
    if kernel in ("varlen", "flex"):
        _load()
    if kernel in ("document", "varlen"):
        return cu_seqlens
    token = torch.arange(B * T, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    doc = torch.searchsorted(cu_seqlens, token, right=True).view(B, T)
    if kernel == "dense":
        same = doc[:, :, None] == doc[:, None, :]  # (B, T, T)
        return same.tril()[:, None]  # (B, 1, T, T)

    def mask(b, h, i, j):
        return (i >= j) & (doc[b, i] == doc[b, j])

    return create_block_mask(mask, B, None, T, T, device=cu_seqlens.device)


def pick_kernel(x, T):
    """The kernel for activations x in rows of T tokens."""
    if x.is_cuda:
        # varlen_attn knows half precision only.
        return "varlen" if x.dtype in (torch.bfloat16, torch.float16) else "dense"
    # measured: below this many tokens a call per document costs more than the whole square.
    return "dense" if T <= 256 or x.device.type != "cpu" else "document"


def attend(q, k, v, layout):
    """Causal attention within documents: the one entry point, whatever the kernel.

    q: (B, T, H, D); k, v: (B, T, K, D); layout: from attention_layout, or a function of (q, k, v)
    for attention of your own (a key/value cache, a recorded pattern). Returns (B, T, H, D).
    """
    if callable(layout):
        return layout(q, k, v)
    B, T, H, _ = q.shape
    if not isinstance(layout, torch.Tensor):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return flex_attention(q, k, v, block_mask=layout, enable_gqa=True).transpose(1, 2)
    if layout.dtype == torch.bool:
        # A mask and grouped heads together would fall back to a slow kernel: copy the heads.
        k, v = (repeat(x, "b t k d -> b t (k g) d", g=H // x.shape[2]) for x in (k, v))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=layout).transpose(1, 2)
    q, k, v = (rearrange(x, "b t h d -> (b t) h d") for x in (q, k, v))
    if not q.is_cuda:
        out = document_attention(q, k, v, layout)[0]
    elif varlen_has_gqa:
        out = varlen_attn(q, k, v, layout, layout, T, T, window_size=(-1, 0), enable_gqa=True)
    else:
        k, v = (repeat(x, "n k d -> n (k g) d", g=H // x.shape[1]) for x in (k, v))
        out = varlen_attn(q, k, v, layout, layout, T, T, window_size=(-1, 0))
    return rearrange(out, "(b t) h d -> b t h d", b=B)
