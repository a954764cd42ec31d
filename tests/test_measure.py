"""Instruments against known truth: spectra, ranks, hand counts, the floor, intervals, probes."""
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch

import dataset
import measure
import microsynth
import report
from model import ModelConfig, Transformer
from tokenizer import encode_document, load_encoder


def test_spectra_of_known_matrices():
    u, v = (torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))[0] for n in (24, 16))
    s = torch.linspace(3, 0.5, 16, dtype=torch.float64)
    p = s / s.sum()
    name = "blocks.0.attn.c_q.weight"
    found, broken = measure.spectra({name: u[:, :16] @ torch.diag(s) @ v.T})
    row = {k: x[0] for k, x in found["q"].items()}
    assert row["layer"] == 0 and row["top"] == pytest.approx(3) and not broken
    assert row["stable_rank"] == pytest.approx(float((s**2).sum() / 9))
    assert row["effective_rank"] == pytest.approx(float(torch.exp(-(p * p.log()).sum())))
    weights = {"blocks.0.attn.c_proj.weight": torch.zeros(8, 8),
               "blocks.1.attn.c_proj.weight": torch.ones(8, 8, dtype=torch.bfloat16),
               "blocks.0.ffn.c_proj.weight": torch.eye(8, 12),
               "blocks.0.norm_1.weight": torch.ones(8), "blocks.0.x.weight": torch.ones(2, 2, 2),
               "blocks.2.attn.c_k.weight": torch.full((4, 4), math.nan),
               "blocks.0.attn.c_v.weight": torch.ones(1, 9)}
    found, broken = measure.spectra(weights)
    assert found["o"]["layer"] == [0, 1] and found["down"]["effective_rank"] == pytest.approx([8])
    assert found["o"]["stable_rank"] == pytest.approx([0, 1])
    assert found["o"]["effective_rank"] == pytest.approx([0, 1], abs=1e-6)
    assert set(broken) == {f"blocks.{n}.weight" for n in ("2.attn.c_k", "0.attn.c_v", "0.x")}
    assert "NaN" in broken["blocks.2.attn.c_k.weight"]


def test_rank_of_a_known_stream():
    model = Transformer(ModelConfig(vocab_size=16, block_size=16, n_layer=2, n_embd=16, n_head=2,
                                    n_kv_head=1, residual="rezero")).eval()
    model.wte.weight.data = torch.eye(16)
    rows = np.tile(np.arange(17) % 16, (4, 1))
    sample = measure.Sample(rows, np.zeros_like(rows))
    found = measure.representation_rank(model, sample, "cpu")
    # 16 equally frequent one-hot vectors span 15 equal directions about their mean.
    assert found["by_layer"] == pytest.approx([15] * 3, rel=1e-4)


SPECIALS = {name: i for i, name in enumerate(dataset.SPECIALS)}
#      BOS start u  end  nl start a think t  end ans EOS
DOC = [0, 2, 6, 3, 7, 2, 8, 4, 9, 5, 10, 1]
REGION = "other query other query other answer other trace other answer other".split()


class Table:
    """A model whose logits depend on the current token alone."""

    def __init__(self):
        self.cfg = SimpleNamespace(vocab_size=11)
        self.logits = torch.randn(11, 11, generator=torch.Generator().manual_seed(0))

    def __call__(self, x, cu):
        return self.logits[x]


def corpus_of(docs, entropy=None):
    ends = np.cumsum([len(d) for d in docs])
    entropy = np.ones((len(docs), 5)) if entropy is None else entropy
    return SimpleNamespace(
        tokens=np.concatenate(docs).astype(np.uint16), doc_ends=ends, specials=SPECIALS, path="x",
        labels=["rag", "mcq"], label_ids=np.arange(len(docs)) % 2, entropy=entropy, name="x",
        split=lambda part: np.arange(len(docs)), doc=lambda i: np.array(docs[i], np.uint16))


def test_decomposition_is_the_hand_count_on_a_row_of_12_tokens():
    entropy = np.array([[0.7, 0.2, 0.1, 0, 0]] * 3)
    data = corpus_of([DOC, DOC, DOC + DOC[1:]], entropy)
    held = measure.HeldOut(data, 12, (100, 100))
    assert held.too_long == 1 and list(held.ids) == [0, 1]
    corpus, model = measure.Corpus(held, 100), Table()
    corpus.nll["m"] = held.by_document(measure.losses(model, held.docs, "cpu", ""))
    corpus.resample()
    cells = {(c["region"], c["exercise"]): c for c in corpus.decompose("m")}
    logp = model.logits.double().log_softmax(-1).numpy()
    nll = [-logp[a, b] for a, b in zip(DOC, DOC[1:])]
    for region in set(REGION):
        mine = [x for x, r in zip(nll, REGION) if r == region]
        c = cells[region, "mcq"]
        assert c["tokens"] == len(mine) and c["loss"] == pytest.approx(np.mean(mine), abs=1e-6)
        floor = dict(zip(dataset.REGIONS, entropy[0])).get(region) / len(mine)
        assert c["floor"] == pytest.approx(floor)
        assert c["excess"] == pytest.approx(c["loss"] - floor)
    parts = [c for (r, e), c in cells.items() if r != "all" and e == "all"]
    total = cells["all", "all"]
    assert total["tokens"] == 2 * len(nll)
    assert total["loss"] == pytest.approx(np.mean(nll), abs=1e-6)
    assert sum(c["share"] * c["loss"] for c in parts) == pytest.approx(total["loss"], abs=1e-9)
    assert sum(c["loss_share"] for c in parts) == pytest.approx(1)
    # The row cut on the left by 5: the same targets, without the first five, keep their losses.
    cut = measure.Sample(np.array([DOC[5:]]), np.zeros((1, 7), int))
    assert measure.losses(model, cut, "cpu", "") == pytest.approx(nll[5:], abs=1e-6)


def test_whole_documents_sharing_a_row_equal_documents_alone():
    model = Transformer(ModelConfig(vocab_size=11, block_size=30, n_layer=2, n_embd=16, n_head=2,
                                    n_kv_head=1)).eval()
    docs = [DOC, DOC[:5], DOC[2:9], DOC, DOC[:3]]
    packed, *alone = (measure.losses(model, measure.Sample(*measure.pack_whole(d, 31)), "cpu", "")
                      for d in (docs, *([doc] for doc in docs)))
    assert packed == pytest.approx(np.concatenate(alone), abs=1e-5)


def test_the_floor_is_the_generators_surprisal():
    data = dataset.Dataset(tiny.corpora() / "tiny")
    held = measure.HeldOut(data, 128, (1000, 3000))
    for i, row in list(zip(held.ids, held.floor))[:9]:
        made = next(microsynth.generate(1, seed=data.meta["options"]["seed"], start=int(i)))
        cells = row.reshape(held.shape)[data.labels.index(made["exercise"])]
        for region, nats in made["entropy"].items():
            assert cells[dataset.REGIONS.index(region)] == pytest.approx(nats, rel=1e-5)
        assert row.sum() == pytest.approx(sum(made["entropy"].values()), rel=1e-5)


def test_intervals_cover_and_are_stable():
    rng, delta, hits = np.random.default_rng(1), 0.02, 0
    for _ in range(1500):
        n = rng.integers(5, 60, 150)
        noise = rng.standard_normal(150) + rng.exponential(1, 150) - 1
        difference = n * (delta + 0.1 * noise)
        low, high = measure.ratio_interval(difference, n, 500)[1]
        hits += low <= delta <= high
    assert 0.93 * 1500 <= hits <= 0.97 * 1500
    ends = []
    for seed in range(4):
        boot = measure.resample(np.stack([difference, n], 1), 10000, seed)
        text = report.spread(measure.interval(boot[:, 0] / boot[:, 1]))
        ends.append([float(x) for x in re.findall(r"-?[\d.]+", text)])
    unit = 10.0 ** -len(text.split(",")[0].split(".")[1])
    assert np.ptp(ends, 0).max() <= 1.01 * unit
    assert (measure.resample([[1.0]] * 7, 5) == 7).all()


def test_candidates_score_as_a_direct_sum():
    data = dataset.Dataset(tiny.corpora() / "tiny")
    item = microsynth.retrieval_probes(1, distances=(0,))[0]
    model = Transformer(ModelConfig(vocab_size=320, block_size=200, n_layer=2, n_embd=16, n_head=2,
                                    n_kv_head=1)).eval()
    scores = measure.probe_scores(model, data, [item], "cpu", "", 201)
    encode, specials = load_encoder(str(data.path / "tokenizer.json"))
    for candidate, score in zip(item["candidates"], scores[0]):
        record = {"query": item["query"], "synthetic_reasoning": "",
                  "synthetic_answer": item["answer_prefix"] + candidate}
        ids = encode_document(record, encode, specials)
        ids = torch.from_numpy(ids.astype(np.int64))[None]
        logp = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])[0, :, 0]
        direct = logp[-2 - len(encode(candidate)) : -2].sum().item()
        assert score == pytest.approx(direct, abs=1e-4)
    assert measure.probe_scores(model, data, [item], "cpu", "", 10) is None
