"""Documents in a row never meet, whatever the kernel; lengths that fit, and those that do not."""
import itertools
import re

import pytest
import torch
from reference import CUTS, cut, far, grads, make, probe, tokens, wide


@pytest.mark.parametrize("kernel", ["document", "dense", "auto"])
def test_packed_documents_are_documents_alone(kernel):
    model, idx, cu = make(block_size=64), tokens(2, 64), cut(0, 5, 6, 46, 64, 96, 128)
    model.kernel = kernel
    logits = model(idx, cu)
    for a, b in itertools.pairwise(cu.tolist()):
        assert far(model(idx.view(1, -1)[:, a:b]), logits.view(1, 128, -1)[:, a:b]) < 1e-5
    assert torch.equal(model(idx, torch.cat([cu, cut(*[128] * 23)])), logits)
    assert torch.equal(model(idx), model(idx, cut(0, 64, 128)))


@pytest.mark.parametrize("kernel", ["document", "dense"])
@pytest.mark.parametrize("T", [2, 17, 32])
def test_a_future_token_changes_no_earlier_logit(kernel, T):
    model, idx, t = make(), tokens(1, T), T // 2
    model.kernel, other = kernel, idx.clone()
    other[0, t] = (other[0, t] + 1) % 29
    same, changed = model(idx), model(other)
    assert torch.equal(same[:, :t], changed[:, :t]) and not torch.equal(same[:, t:], changed[:, t:])


@pytest.mark.parametrize("kernel", ["document", "dense"])
def test_no_gradient_crosses_a_document(kernel):
    model, seen = make(), []
    model.kernel = kernel
    model.wte.register_forward_hook(lambda m, a, out: seen.append(out) or out.retain_grad())
    model(tokens(1, 20), cut(0, 7, 12, 20))[0, 7:12].pow(2).sum().backward()
    moved = (seen[0].grad[0] != 0).any(-1)
    assert moved.tolist() == [False] * 7 + [True] * 5 + [False] * 8


@pytest.mark.parametrize("D", [8, 16, 64])
@pytest.mark.parametrize("T", [1, 17, 127, 128, 130, 257])
def test_the_kernels_agree_forward_and_backward(T, D):
    model, idx = make(block_size=257, n_layer=1, n_embd=4 * D), tokens(2, T)  # 4 heads, 2 kv heads
    ends = sorted({0, T // 3, T // 3 + 1, T, T + T // 2, 2 * T}) + [2 * T] * 3
    results = {}
    for model.kernel in ("dense", "document", "auto"):
        logits = model(idx, cut(*ends))
        results[model.kernel] = {"logits": logits, **grads(model, logits)}
    expected = results.pop("dense")
    for kernel, key in itertools.product(results, expected):
        assert far(results[kernel][key], expected[key]) < 1e-5, (kernel, key)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the varlen and flex kernels need CUDA")
@pytest.mark.parametrize("kernel", ["varlen", "flex"])
def test_cuda_kernels_agree_with_dense(kernel):
    model, idx = make(1, block_size=256, n_embd=256).cuda(), tokens(2, 200).cuda()
    cu, results = cut(0, 30, 31, 200, 350, 400, 400, 400).cuda(), []
    model.compute_dtype = torch.bfloat16
    for model.kernel in ("dense", kernel):
        logits = model(idx, cu)
        results.append({"logits": logits, **grads(model, logits)})
    for key, expected in results[0].items():
        assert (results[1][key] - expected).norm() < 0.05 * expected.norm(), key


@pytest.mark.parametrize("kernel", ["document", "dense"])
def test_bfloat16_is_for_computing_and_not_for_weights(kernel):
    model, idx, results = make(1, block_size=64), tokens(2, 64), []
    model.kernel = kernel
    for model.compute_dtype in (torch.float32, torch.bfloat16):
        logits = model(idx, cut(0, 40, 64, 128))
        results.append({"logits": logits, **grads(model, logits)})
        assert logits.dtype == model.compute_dtype and model.wte.weight.dtype == torch.float32
    for key in results[0]:
        assert (results[1][key] - results[0][key]).norm() < 0.05 * results[0][key].norm(), key


@pytest.mark.parametrize("T", [0, 33])
def test_lengths_that_do_not_fit_are_refused(T):
    model = make()
    with pytest.raises(ValueError) as refusal:
        model(tokens(1, T))
    assert {str(T), "32"} <= set(re.findall(r"\d+", str(refusal.value)))
    assert model(tokens(2, 1)).shape == (2, 1, 29) and model(tokens(1, 32)).shape == (1, 32, 29)


@pytest.mark.slow
def test_one_graph_serves_every_layout():
    model, idx = make(n_layer=1), tokens(2, 12)
    model.kernel = "document"
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for cu in (cut(*CUTS), cut(0, 12, 24, 24, 24, 24, 24)):
            ours, plain = grads(model, compiled(idx, cu)), grads(model, model(idx, cu))
            assert far(compiled(idx, cu), model(idx, cu)) < 1e-5
            assert all(far(ours[k], plain[k]) < 1e-5 for k in plain)


# ---- two statements of SPEC section 1 ----


def test_conditional_linearity():
    model, (idx, a, b), at = wide(make(n_layer=1)), tokens(3, 8)[:, None], "blocks.0.attn."
    fixed = {at + name: probe(model, idx)[at + name][1] for name in ("c_q", "c_k")}
    u, v = (probe(model, i)["blocks.0.norm_1"][1] for i in (a, b))

    def update(z, **held):
        return probe(model, idx, {**held, "blocks.0.norm_1": z})[at + "c_proj"][1]

    mixed = update(0.3 * u - 1.7 * v, **fixed)
    assert far(mixed, 0.3 * update(u, **fixed) - 1.7 * update(v, **fixed)) < 1e-12
    assert far(update(0.3 * u - 1.7 * v), 0.3 * update(u) - 1.7 * update(v)) > 1e-3  # A moves


def test_simplex_transport():
    model, T, D = wide(make(n_embd=64, n_layer=1, spread=1.0)), 12, 16
    seen = probe(model, torch.arange(T)[None], cu=cut(0, 5, 12))  # distinct tokens, distinct values
    heads = seen["blocks.0.attn.c_proj"][0].view(T, 4, D)
    v = seen["blocks.0.attn.c_v"][1].view(T, 2, D)
    allowed = torch.block_diag(torch.ones(5, 5), torch.ones(7, 7)).tril().bool()
    for h in range(4):  # 12 points in 16 dimensions: the weights that mix them are unique
        A = torch.linalg.lstsq(v[:, h // 2].T, heads[:, h].T).solution.T
        assert far(A @ v[:, h // 2], heads[:, h]) < 1e-9
        assert far(A.sum(1), torch.ones(T)) < 1e-9
        assert A[~allowed].abs().max() < 1e-9 and A[allowed].min() > 0
