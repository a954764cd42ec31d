"""What keeps the code fast, as facts that hold on any machine: no test here looks at a clock."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dataset import Packing
from model import ModelConfig, Transformer
from reference import TINY, cut, tokens
from runtime import compile_model
from train import TrainConfig, make_optimizer


@pytest.mark.slow
def test_all_layers_share_one_graph_and_nothing_recompiles():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, cfg = Transformer(ModelConfig(**TINY | {"n_layer": 6})), TrainConfig()
    model.kernel = "document"
    optimizer, said = make_optimizer(model, cfg), []
    compile_model(model, cfg, torch.device("cpu"), said.append)
    assert not said
    graphs = torch._dynamo.utils.counters["stats"]
    idx, seen = tokens(2, 12), []
    for step, layout in enumerate([(0, 12, 24, 24, 24), (0, 3, 9, 12, 24), (0, 1, 12, 20, 24)]):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (step + 1)
        sum(model(idx, cut(*layout), idx)).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(graphs["unique_graphs"])
    assert seen == [3, 3, 3]  # the trial of the compiler, the block, the loss


class Counting(np.ndarray):
    """An array that counts the elements that are taken out of it."""
    taken = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        Counting.taken += np.size(found)
        return found


@pytest.mark.parametrize("width", (8, 64))
def test_a_batch_costs_the_same_whatever_the_corpus_holds(width):
    def cost(n_docs):
        ends = np.arange(1, n_docs + 1) * 10
        data = SimpleNamespace(tokens=np.zeros(ends[-1], np.uint16), doc_ends=ends, path="made up")
        packing = Packing(data, np.arange(n_docs), width, seed=1)
        packing.read([0])  # the epoch's order is made once
        for name in ("tokens", "doc_ends", "lengths"):
            setattr(packing, name, getattr(packing, name).view(Counting))
        packing._layouts = {e: tuple(x.view(Counting) for x in parts)
                            for e, parts in packing._layouts.items()}
        Counting.taken = 0
        packing.read(np.arange(5, 21))
        return Counting.taken

    # Beyond what is taken out there are two binary searches.
    assert cost(1_000) == cost(100_000) > 0
