"""bench.py runs and counts what it says; how fast is not a test's business."""
import pytest
import torch

import bench
from dataset import Dataset

TINY = ["--n_layer=1", "--n_embd=32", "--n_head=2", "--n_kv_head=1", "--block_size=64",
        "--vocab_size=50", "--doc_len=20", "--repeats=1", "--compile=false", "--dtype=float32"]


@pytest.mark.parametrize("compare, words", [
    ("", ["forward + backward", "tokens/s", "of the peak"]),
    ("attention", ["document fwd", "dense fwd"]), ("optimizer", ["torch.optim.Muon", "1.00 x"])])
def test_every_comparison_runs(capsys, compare, words):
    bench.main([*TINY, "--compare", compare])
    said = capsys.readouterr().out
    assert all(word in said for word in words)


def test_documents_fill_the_rows_and_pairs_are_counted():
    cu = bench.documents(3, 64, 20, "cpu")
    assert cu[0] == 0 and cu[-1] == 192 and {64, 128} <= set(cu.tolist()) and (cu.diff() > 0).all()
    assert bench.pairs(torch.tensor([0, 2, 5])) == 3 + 6
    assert bench.documents(2, 64, 64, "cpu").tolist() == [0, 64, 128]


def test_the_made_up_corpus_passes_the_reader(tmp_path):
    bench.fake_corpus(tmp_path, 1000, 30)
    data = Dataset(tmp_path)
    assert (data.n_docs, data.n_tokens) == (1000, 30_000)
