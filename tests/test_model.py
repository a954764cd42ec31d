"""The model: every variant, the statements of SPEC section 1, loss, config, init, accounting."""
import dataclasses
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from reference import (CUTS, cut, double_weights, far, generator, grads, make, probe, ref_logits,
                       tokens, wide)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from model import ModelConfig, Transformer, flops_per_token, mean_context, num_params, partner

SWITCHES = list(itertools.product(("gated", "rezero", "standard", "none"), ("zcrms", "rms"),
                                  (True, False), (False, True), (False, True)))


@pytest.mark.parametrize("values", SWITCHES, ids=str)
def test_every_variant_equals_the_reference(values):
    model = make(**dict(zip(("residual", "norm", "qk_norm", "post_norm", "use_ffn"), values)))
    idx, w = tokens(2, 12), double_weights(model)
    expected = ref_logits(w, model.cfg, idx, cut(*CUTS))
    model.kernel = "document"
    assert far(model(idx, cut(*CUTS)), expected) < 1e-5
    logits = wide(model)(idx, cut(*CUTS))
    assert logits.dtype == torch.float64 and far(logits, expected) < 1e-9
    if model.cfg.norm == "zcrms" and model.cfg.post_norm == (model.cfg.residual == "gated"):
        ours = grads(model, logits)
        expected.backward(torch.randn(expected.shape, generator=generator(2)).double())
        assert set(ours) == set(w) and all(far(ours[k], w[k].grad) < 1e-9 for k in w)


def test_rope_theta_and_inner_width_are_used():
    model, idx = wide(make(rope_theta=100.0, n_inner=24, use_ffn=True, n_kv_head=1)), tokens(1, 32)
    assert model.blocks[0].ffn.c_up.weight.shape == (24, 16)
    assert far(model(idx), ref_logits(double_weights(model), model.cfg, idx, cut(0, 32))) < 1e-9


# ---- statements of SPEC section 1: two more are in test_attention.py, one in test_muon.py ----


def test_scalar_bottleneck_at_length_one():
    model, idx, eye = wide(make(n_layer=5, spread=0.8)), tokens(1, 1), torch.eye(16).double()
    w = {k: p.detach() for k, p in model.named_parameters()}
    start = x = w["wte.weight"][idx[0, 0]] * 16 ** 0.5
    product = eye
    for n in range(5):
        p = f"blocks.{n}."
        wv = w[p + "attn.c_v.weight"].view(2, 4, 16).repeat_interleave(2, 0).reshape(16, 16)
        B = w[p + "attn.c_proj.weight"] @ wv @ torch.diag(1 + w[p + "norm_1.weight"])
        rho = (x.pow(2).mean() + 1e-6).sqrt()
        product = (eye + torch.sigmoid(w[p + "gate_1"]) * B / rho) @ product
        x = product @ start
    assert far(probe(model, idx)["norm_f"][0].flatten(), x) < 1e-12


def test_the_stream_is_bounded_at_init_and_not_without_the_depth_scale():
    one = 0.25 * (0.02 ** 2 * 128) ** 2 * 128  # what one unscaled sublayer adds on average
    for depth, scaled in itertools.product((2, 8, 64), (True, False)):
        growth = 0.0
        for seed in range(4):
            model = Transformer(ModelConfig(512, 8, depth, 128, 4, 2), seed)
            for block in model.blocks:
                block.attn.c_proj.weight.data *= 1 if scaled else (2 * depth) ** 0.5
            with torch.no_grad():
                seen = probe(model, torch.arange(512)[:, None])
            start, end = (seen[name][0].pow(2).sum(-1) for name in ("blocks.0.norm_1", "norm_f"))
            growth += float((end - start).mean()) / 4
        assert 0.8 < growth / (one / 2 if scaled else one * depth) < 1.25


@pytest.mark.parametrize("norm, gain", [("zcrms", 1.0), ("rms", 0.0)])
def test_fixed_point_of_decay_on_the_gain(norm, gain):
    layer = make(norm=norm).norm_f
    layer.weight.data *= (1 - 0.1) ** 400  # 400 steps of decay, and no gradient
    out = layer(100 * torch.randn(5, 16, generator=generator(0)))
    assert far(out.pow(2).mean(-1).sqrt(), torch.full((5,), gain)) < 1e-5


# ---- loss ----


def test_loss_sums_over_scored_positions():
    model, idx, y = make(), tokens(2, 12), tokens(2, 12, seed=5)
    y[0, 3] = y[1, 7:] = -1
    nll, zsq = model(idx, cut(*CUTS), y)
    assert nll.dtype == zsq.dtype == torch.float32 and nll.shape == zsq.shape == ()
    w = double_weights(model)
    logits = ref_logits(w, model.cfg, idx, cut(*CUTS))[y != -1]
    plain = F.cross_entropy(logits, y[y != -1], reduction="sum"), logits.logsumexp(-1).pow(2).sum()
    assert far(nll, plain[0]) < 1e-5 and far(zsq, plain[1]) < 1e-5
    (nll + 0.1 * zsq).backward()
    (plain[0] + 0.1 * plain[1]).backward()
    assert all(far(p.grad, w[name].grad) < 1e-5 for name, p in model.named_parameters())
    halves = model(idx[:1], cut(0, 3, 4, 12), y[:1]), model(idx[1:], cut(0, 8, 12), y[1:])
    assert all(far(a, b + c) < 1e-6 for a, b, c in zip((nll, zsq), *halves))
    model.zero_grad()
    nothing = sum(model(idx, None, torch.full_like(y, -1)))
    nothing.backward()
    assert nothing == 0 and all((p.grad == 0).all() for p in model.parameters())


# ---- config, init, accounting ----


@pytest.mark.parametrize("n_embd, n_head, n_kv_head, number", [
    (100, 3, 3, 100), (96, 6, 4, 4), (96, 6, 0, 0), (96, 6, -1, -1), (96, 0, 1, 0), (96, 6, 12, 12),
    (520, 8, 4, 65), (40, 8, 4, 5)])
def test_shapes_that_cannot_work_are_refused(n_embd, n_head, n_kv_head, number):
    with pytest.raises(ValueError, match=rf"(?<!\w){number}(?!\w)"):
        ModelConfig(n_embd=n_embd, n_head=n_head, n_kv_head=n_kv_head)


@pytest.mark.parametrize("key, value", [
    ("residual", "gate"), ("norm", "layer"), ("vocab_size", 0), ("block_size", 0), ("n_layer", -1),
    ("n_inner", -4), ("rope_theta", -2.0)])
def test_options_that_cannot_work_are_refused(key, value):
    with pytest.raises(ValueError, match=f"{key}.*{value}"):
        ModelConfig(**{key: value})


@pytest.mark.parametrize("n_embd, n_head, n_kv_head", [(96, 6, 6), (96, 6, 1), (16, 8, 4)])
def test_head_counts_that_fit_train(n_embd, n_head, n_kv_head):
    model = make(n_embd=n_embd, n_head=n_head, n_kv_head=n_kv_head)
    assert all(g.isfinite().all() for g in grads(model, model(tokens(2, 9))).values())
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.cfg.n_head = 3


@pytest.mark.parametrize("residual, norm", [("gated", "zcrms"), ("rezero", "rms")])
def test_init_is_the_table(residual, norm):
    cfg = ModelConfig(2048, 64, 3, 256, 4, 2, True, residual=residual, norm=norm, post_norm=True)
    model, again, other = (Transformer(cfg, seed) for seed in (3, 3, 4))
    for (name, p), q, r in zip(model.named_parameters(), again.parameters(), other.parameters()):
        assert torch.equal(p, q)
        if p.ndim == 2:
            std = 0.02 / math.sqrt(6) if "c_proj" in name else 0.02
            assert abs(p.std() / std - 1) < 0.02 and abs(p.mean()) < 0.02 * std
            assert not torch.equal(p, r)
        elif "gate" in name:
            assert p.shape == () and p == 0
        else:
            assert (p == (norm == "rms")).all(), name
    if residual == "rezero":
        seen = probe(model, tokens(1, 9))
        assert torch.equal(seen["norm_f"][0], seen["blocks.0.norm_1"][0])
    model.stray = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match="stray"):
        model.init_weights(0)


SAN, FFN = False, True
ARMS = [  # SPEC section 3: layers, width, heads, arm, what differs, total, non-embedding
    (20, 512, 8, SAN, {}, 24_130_580, 15_741_972), (4, 512, 8, FFN, {}, 24_122_376, 15_733_768),
    (9, 512, 8, FFN, {}, 43_788_946, 35_400_338), (20, 512, 8, FFN, {}, 87_055_400, 78_666_792),
    (10, 256, 4, SAN, {}, 6_164_490, 1_970_186), (2, 256, 4, FFN, {}, 6_161_924, 1_967_620),
    (14, 384, 6, SAN, {}, 12_492_174, 6_200_718), (3, 384, 6, FFN, {}, 12_930_054, 6_638_598),
    (26, 640, 10, SAN, {}, 42_455_194, 31_969_434), (5, 640, 10, FFN, {}, 41_213_450, 30_727_690),
    (32, 768, 12, SAN, {}, 69_235_488, 56_652_576), (6, 768, 12, FFN, {}, 65_677_836, 53_094_924),
    (8, 800, 10, SAN, {}, 28_475_688, 15_368_488), (32, 400, 10, SAN, {}, 21_929_392, 15_375_792),
    (48, 320, 8, SAN, {}, 20_008_048, 14_765_168),
    (20, 512, 8, SAN, {"post_norm": True}, 24_140_820, 15_752_212),
    (20, 512, 8, SAN, {"residual": "standard"}, 24_130_560, 15_741_952),
    (20, 512, 8, SAN, {"qk_norm": False}, 24_128_020, 15_739_412)]


@pytest.mark.parametrize("L, C, H, arm, options, total, inside", ARMS)
def test_parameter_counts_of_the_study(L, C, H, arm, options, total, inside):
    cfg = ModelConfig(n_layer=L, n_embd=C, n_head=H, n_kv_head=H // 2, use_ffn=arm, **options)
    with torch.device("meta"):
        model = Transformer(cfg)
    assert tuple(num_params(cfg)) == (total, inside)
    assert sum(p.numel() for p in model.parameters()) == total
    assert model.wte.weight.numel() == total - inside


@pytest.mark.parametrize("n_layer, use_ffn, gflops", [
    (20, SAN, 0.396), (4, FFN, 0.195), (9, FFN, 0.376), (20, FFN, 0.774)])
def test_flops_of_the_study(n_layer, use_ffn, gflops):
    cfg = ModelConfig(n_layer=n_layer, use_ffn=use_ffn)
    weights = 6 * (n_layer * 512 ** 2 * (15 if use_ffn else 3) + 16384 * 512)
    dense, causal, *by_length = (flops_per_token(cfg, mean_context(cfg, *c)) for c in (
        ("dense",), ("causal",), *(("document", n) for n in (1, 100, 870, 2048, 10 ** 6))))
    assert round(dense / 1e9, 3) == gflops and dense == weights + 12 * n_layer * 512 * 2048
    assert causal == (dense + weights) / 2
    assert weights < by_length[0] and by_length == sorted(by_length) and by_length[-1] <= causal
    at = torch.arange(870 * 2048)  # documents of 870 laid end to end, cut again by every row's edge
    keys = 1 + float(torch.minimum(at % 870, at % 2048).double().mean())
    assert by_length[2] == pytest.approx(weights + 12 * n_layer * 512 * keys, rel=1e-3)


@pytest.mark.parametrize("use_ffn, n_kv_head", [(SAN, 1), (SAN, 2), (FFN, 2)])
def test_flops_equal_what_torch_counts(use_ffn, n_kv_head):
    model = Transformer(ModelConfig(512, 64, 2, 64, 4, n_kv_head, use_ffn=use_ffn))
    model.kernel, ours = "dense", flops_per_token(model.cfg, mean_context(model.cfg, "dense"))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(tokens(2, 64)).sum().backward()
    assert counter.get_total_flops() / 128 == pytest.approx(ours, rel=0.01)


@pytest.mark.parametrize("arm", [SAN, FFN])
def test_the_matcher_finds_the_partners_of_the_study(arm):
    layers = {"params": 4, "flops": 9, "depth": 20} if arm == SAN else {"params": 100, "depth": 20}
    cfg = ModelConfig(use_ffn=arm)
    for axis, n_layer in layers.items():
        other, ratio = partner(cfg, axis)
        assert other == dataclasses.replace(cfg, use_ffn=not arm, n_layer=n_layer)
        assert ratio == pytest.approx(1, abs=0.06 if axis == "flops" else 0.002)
