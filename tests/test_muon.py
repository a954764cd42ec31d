"""Muon against torch.optim, against its two orders written out plainly, and at its edges."""
import io

import pytest
import torch

from muon import Muon, newton_schulz

SHAPES = [(16, 48), (48, 16), (16, 48), (32, 32)]  # two of them go through as one batch
EDGES = [(64, 64), (256, 64), (64, 256), (1, 64), (64, 1), (1, 1)]


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def params(shapes, seed=0):
    return [torch.nn.Parameter(randn(*s, seed=seed + i)) for i, s in enumerate(shapes)]


def group(ps, kind="muon", **options):
    return {"kind": kind, "params": ps, **{"lr": 0.1, "weight_decay": 0.0, **options}}


def gradient(p, i, step):
    """Depends on step and parameter only, and agrees a little from step to step."""
    return randn(*p.shape, seed=1000 * step + i) + 0.5 * randn(*p.shape, seed=77 + i)


def train(optimizer, ps, steps, start=0, scale=1.0):
    for step in range(start, start + steps):
        for i, p in enumerate(ps):
            p.grad = scale * gradient(p, i, step)
        optimizer.step()


def far(a, b):
    return float((a - b).detach().double().norm() / b.detach().double().norm())


def exact(groups):
    """Newton-Schulz in float64, so that everything around it can be compared closely."""
    return Muon(groups, ns_dtype=torch.float64)


def plain_ns(G, steps=5):
    X = G.double() / G.double().norm()
    for _ in range(steps):
        A = X @ X.T
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X


def plain_steps(p, gradients, lrs, wd, order="momentum_first", nesterov=True):
    p, m = p.detach().double(), torch.zeros_like(p).double()
    for g, lr in zip(gradients, lrs):
        if order == "momentum_first":
            m = 0.95 * m + 0.05 * g.double()
            u = plain_ns(0.05 * g + 0.95 * m if nesterov else m)
        else:
            o = plain_ns(g)
            m = 0.95 * m + o
            u = o + 0.95 * m if nesterov else m
        p = p * (1 - lr * wd) - lr * u
    return p


# momentum_first with Nesterov is the default
@pytest.mark.parametrize("options", [{}, {"nesterov": False}, {"order": "orthogonalize_first"},
                                     {"order": "orthogonalize_first", "nesterov": False}])
def test_both_orders_equal_the_plain_reference(options):
    ps = params(SHAPES)
    train(exact([group(ps, weight_decay=0.3, **options)]), ps, 6)
    for i, (p, p0) in enumerate(zip(ps, params(SHAPES))):
        gradients = [gradient(p, i, step) for step in range(6)]
        assert far(p, plain_steps(p0, gradients, [0.1] * 6, 0.3, **options)) < 1e-5


@pytest.mark.parametrize("factor", [True, False])
def test_momentum_first_equals_torch_muon(factor):
    shapes = SHAPES if factor else [s for s in SHAPES if s[0] <= s[1]]  # torch has no "no factor"
    ours, theirs = params(shapes), params(shapes)
    train(Muon([group(ours, weight_decay=0.1, shape_factor=factor)]), ours, 5)
    train(torch.optim.Muon(theirs, lr=0.1, weight_decay=0.1, adjust_lr_fn="original"), theirs, 5)
    for a, b, p0 in zip(ours, theirs, params(shapes)):
        assert far(a - p0, b - p0) < 0.02  # both round to bfloat16 inside, in different places


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_adamw_group_equals_torch_adamw(weight_decay):
    for options in ({}, dict(betas=(0.5, 0.7), eps=1e-2)):
        ours, theirs = params([(5, 7), (9,), ()]), params([(5, 7), (9,), ()])
        both = dict(lr=0.01, weight_decay=weight_decay, **options)
        train(Muon([group(ours, "adamw", **both)]), ours, 12)
        train(torch.optim.AdamW(theirs, **{"betas": (0.9, 0.95), **both}), theirs, 12)
        assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in zip(ours, theirs))


def test_newton_schulz_is_the_quintic_and_batches_and_transposes():
    G = randn(5, 24, 40).double()
    together = newton_schulz(G, 5, torch.float64)
    for one, g in zip(together, G):
        assert far(one, plain_ns(g)) < 1e-6
        assert far(newton_schulz(g, 5, torch.float64), one) < 1e-9
        assert far(newton_schulz(g.T, 5, torch.float64).T, one) < 1e-9
        for u in (newton_schulz(g.float()), newton_schulz(g.T.float()).T):
            assert far(u, one) < 0.02
    assert far(newton_schulz(G[0], 2, torch.float64), plain_ns(G[0], 2)) < 1e-6


@pytest.mark.parametrize("shape", [(64, 128), (128, 64), (256, 512), (512, 256)])
def test_singular_values_of_a_two_to_one_gaussian_become_nearly_one(shape):
    s = torch.linalg.svdvals(newton_schulz(randn(*shape)).float())
    assert 0.6 < s.min() and s.max() < 1.25


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", EDGES)
def test_degenerate_matrices(shape, dtype):
    G = randn(*shape).to(dtype)
    for g in (G, 1e-4 * G, 1e4 * G, G[:, :1] @ G[:1], torch.zeros_like(G)):
        u = newton_schulz(g)
        assert u.shape == g.shape and u.isfinite().all()
        assert torch.linalg.matrix_norm(u.float(), 2) < 1.3
    assert (u == 0).all()
    for scale in (1e-4, 1e4):
        assert (newton_schulz(scale * G) - newton_schulz(G)).abs().max() < 0.05


def test_a_vanishing_gradient_stays_finite():
    for exponent in range(-45, 0, 3):  # the squares of the smaller ones are 0 in float32
        assert newton_schulz(randn(8, 16) * 10.0 ** exponent).isfinite().all()


@pytest.mark.parametrize("order", ["momentum_first", "orthogonalize_first"])
def test_a_zero_gradient_moves_nothing_and_a_degenerate_one_stays_finite(order):
    ps = params(EDGES + [(7,)])
    optimizer = Muon([group(ps[:-1], order=order), group(ps[-1:], "adamw")])
    train(optimizer, ps, 2, scale=0.0)
    assert all(torch.equal(p, q) for p, q in zip(ps, params(EDGES + [(7,)])))
    for scale in (1e-12, 1.0, 1e6):
        train(optimizer, ps, 2, scale=scale)
    assert all(p.isfinite().all() for p in ps)


def test_parameters_without_a_gradient_are_left_alone():
    shapes, decay = [(8, 8), (8, 8), (6,), (6,)], {"weight_decay": 0.5}
    ps = params(shapes)
    optimizer = Muon([group(ps[:2], **decay), group(ps[2:], "adamw", **decay), group([])])
    optimizer.step()
    train(optimizer, ps[::2], 3)
    assert [torch.equal(p, q) for p, q in zip(ps, params(shapes))] == [False, True, False, True]


def test_rate_and_decay_are_each_groups_own_at_every_step():
    settings = [("muon", 0.1, 0.5), ("muon", 0.03, 0.0), ("adamw", 0.02, 0.1), ("adamw", 0.3, 0.4)]
    shapes, scales = [(8, 16)] * 4, (1.0, 0.5, 0.1, 0.0)
    ps, theirs = params(shapes), params(shapes)
    ours = exact([group([p], kind, weight_decay=wd) for p, (kind, _, wd) in zip(ps, settings)])
    torchs = torch.optim.AdamW([{"params": [p], "weight_decay": wd}
                                for p, (_, _, wd) in zip(theirs, settings)], betas=(0.9, 0.95))
    for step, scale in enumerate(scales):
        before = [p.detach().clone() for p in ps]
        for optimizer, own in ((ours, ps), (torchs, theirs)):
            for g, (_, lr, _) in zip(optimizer.param_groups, settings):
                g["lr"] = scale * lr
            train(optimizer, own, 1, start=step)
    assert all(torch.equal(p, q) for p, q in zip(ps, before))  # a rate of 0 moves nothing
    for i, (p, p0, (kind, lr, wd)) in enumerate(zip(ps, params(shapes), settings)):
        gradients = [gradient(p, i, step) for step in range(4)]
        plain = plain_steps(p0, gradients, [scale * lr for scale in scales], wd)
        assert far(p, plain if kind == "muon" else theirs[i]) < 1e-6


@pytest.mark.parametrize("order", ["momentum_first", "orthogonalize_first"])
def test_saved_state_continues_exactly(order):
    def build(ps):
        return Muon([group(ps[:4], order=order, weight_decay=0.1), group(ps[4:], "adamw", lr=0.01)])

    shapes, file = SHAPES + [(7,), ()], io.BytesIO()
    straight, saved = params(shapes), params(shapes)
    train(build(straight), straight, 6)
    half = build(saved)
    train(half, saved, 3)
    torch.save(half.state_dict(), file)
    file.seek(0)
    loaded = [torch.nn.Parameter(p.detach().clone()) for p in saved]
    rest = build(loaded)
    rest.load_state_dict(torch.load(file, weights_only=True))
    train(rest, loaded, 3, start=3)
    assert all(torch.equal(p, q) for p, q in zip(straight, loaded))


@pytest.mark.parametrize("shape", [(11,), (3, 4, 5), (2, 3, 4, 5)])
def test_shapes_muon_cannot_take_are_refused_by_shape(shape):
    with pytest.raises(ValueError, match=", ".join(map(str, shape))):
        Muon([group(params([(4, 4), shape]))])


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
@pytest.mark.parametrize("groups", [
    lambda p, q: [group([p, q]), group([q], "adamw")], lambda p, q: [group([p]), group([q, p])],
    lambda p, q: [group([p, p])], lambda p, q: [group([p], "sgd")],
    lambda p, q: [group([p], order="momentum_last")]])
def test_groups_that_cannot_be_meant_are_refused(groups):
    with pytest.raises(ValueError):
        Muon(groups(*params([(4, 4), (4, 4)])))


@pytest.mark.parametrize("shape", [(64, 64), (96, 32), (32, 96)])
@pytest.mark.parametrize("aligned", [False, True])
def test_one_step_moves_no_singular_value_by_more_than_its_rate(shape, aligned):
    """The last statement of SPEC section 1 (Weyl's inequality)."""
    (p,), eta = params([shape]), 0.07
    before = torch.linalg.svdvals(p.detach())
    p.grad = p.detach().clone() if aligned else gradient(p, 0, 1)
    Muon([group([p], lr=eta)]).step()
    moved = (torch.linalg.svdvals(p.detach()) - before).abs().max()
    assert moved <= 1.25 * eta
    assert moved > 0.8 * eta or not aligned  # so the bound is near what happens
