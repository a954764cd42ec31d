"""eval_tasks.py: log-likelihoods are the model's own, each token once; two tasks end to end."""
import importlib.util
import json
import random

import pytest
import torch

import checkpoint
import eval_tasks
import microsynth
import tiny
from test_sample import ckpt, make  # noqa: F401  a fixture among them
from tokenizer import CheckpointTokenizer

BOS = 1


def direct(model, context, continuation):
    """The sum of log p(id | ids before it), one forward pass for each id, and if all are likeliest.
    The context is what fits before the whole continuation."""
    room = model.cfg.block_size + 1 - len(continuation)
    total, greedy, ids = 0.0, True, [*context[-room:]]
    for token in continuation:
        row = torch.tensor([ids])
        p = model(row)[0, -1].double().log_softmax(-1)
        total, greedy = total + p[token].item(), greedy and p.argmax().item() == token
        ids.append(token)
    return total, greedy


@torch.no_grad()
def test_log_likelihoods_are_direct_sums(monkeypatch):
    model, rng = make(), random.Random(0)
    monkeypatch.setattr(eval_tasks, "BATCH", 100)
    # Context and continuation together reach, and pass, the 33 ids of a row and its targets.
    lengths = [(1, 1), (1, 32), (5, 27), (5, 28), (31, 1), (32, 1), (33, 1), (200, 3), (100, 32),
               (3, 0)]
    pairs = [([BOS, *rng.choices(range(50), k=c - 1)], rng.choices(range(50), k=n))
             for c, n in lengths]
    for context, continuation in pairs[:4]:  # two that greedy decoding gives
        continuation[:] = [direct_best(model, context)]
    found = eval_tasks.score(model, pairs)
    for pair, (nats, greedy) in zip(pairs, found):
        expected = direct(model, *pair)
        assert nats == pytest.approx(expected[0], abs=2e-4) and greedy == expected[1]
    assert [greedy for _, greedy in found[:4]] == [True] * 4 and found[-1] == (0.0, True)
    # The same, whatever else is in the batch.
    assert eval_tasks.score(model, pairs[7:8])[0][0] == pytest.approx(found[7][0], abs=2e-4)


def direct_best(model, context):
    return model(torch.tensor([context[-32:]]))[0, -1].argmax().item()


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 64, 65, 100])
def test_a_long_text_is_scored_token_by_token_once(n):
    ids = list(range(1, n + 1))
    rows = list(eval_tasks.windows([0], ids, 32))
    assert [token for row, k in rows for token in row[-k:]] == ids
    for row, k in rows:
        assert len(row) <= 33 and row == list(range(row[0], row[0] + len(row))) and k < len(row)
        assert row[0] == 0 or len(row) == 33  # all the context that fits
    if importlib.util.find_spec("lm_eval"):
        from lm_eval.utils import get_rolling_token_windows
        theirs = get_rolling_token_windows(ids, 0, 32, 1)
        assert [(inputs + targets[-1:], len(targets)) for inputs, targets in theirs] == rows


@torch.no_grad()
def test_one_direct_pass_over_a_long_text():
    model, ids = make(), [(7 * i) % 50 for i in range(75)]
    total = sum(torch.log_softmax(model(torch.tensor([row[:-1]]))[0].double(), -1)[
        torch.arange(len(row) - 1), row[1:]][-k:].sum().item()
        for row, k in eval_tasks.windows([BOS], ids, 32))
    assert eval_tasks.score(model, [([BOS], ids)])[0][0] == pytest.approx(total, abs=2e-4)


def test_without_the_harness_it_says_what_to_install(ckpt, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setitem(eval_tasks.sys.modules, "lm_eval", None)
    with pytest.raises(eval_tasks.ConfigError, match="pip install"):
        eval_tasks.main([str(ckpt)])


TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {path}}}}}
output_type: {kind}
validation_split: validation
doc_to_text: "{text}"
doc_to_target: "{target}"
metric_list:
  - {{metric: {metric}, aggregation: {how}, higher_is_better: true}}
"""


def test_local_tasks_end_to_end(ckpt, tmp_path, monkeypatch, capsys):  # noqa: F811
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    records = [r["text"] for r in microsynth.generate(6, variant="web")]
    quiz = [{"q": f"{text} Then", "a": [" one.", " two.", " three."], "gold": i % 3}
            for i, text in enumerate(records)]
    for name, rows in ("quiz", quiz), ("prose", [{"page": text} for text in records]):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "quiz.yaml").write_text(TASK.format(
        name="quiz", path=tmp_path / "quiz.jsonl", kind="multiple_choice", text="{{q}}",
        target="{{gold}}", metric="acc", how="mean") + "doc_to_choice: a\n")
    (tmp_path / "prose.yaml").write_text(TASK.format(
        name="prose", path=tmp_path / "prose.jsonl", kind="loglikelihood_rolling", text="",
        target="{{page}}", metric="byte_perplexity", how="weighted_perplexity"))
    eval_tasks.main([str(ckpt), "--tasks=quiz,prose", f"--include_path={tmp_path}"])
    out = capsys.readouterr().out
    assert "quiz" in out and "byte_perplexity" in out and "cut on the left" in out
    report = json.loads((ckpt.parent / "tasks.json").read_text())
    state = checkpoint.read(ckpt)
    model, text = checkpoint.build_model(state), CheckpointTokenizer(state)
    bos = text.special["<|bos|>"]
    with torch.no_grad():
        pairs = [([bos], text.encode(page).tolist()) for page in records]
        nats = sum(eval_tasks.score(model, [pair])[0][0] for pair in pairs)
        right = [max(range(3), key=lambda k: direct(model, [bos, *text.encode(row["q"]).tolist()],
                     text.encode(row["a"][k]).tolist())[0]) == row["gold"] for row in quiz]
    expected = torch.tensor(-nats / sum(len(r.encode()) for r in records)).exp().item()
    results = report["results"]
    assert results["prose"]["byte_perplexity,none"] == pytest.approx(expected, rel=1e-5)
    assert results["quiz"]["acc,none"] == pytest.approx(sum(right) / 6)
    with pytest.raises(eval_tasks.ConfigError, match="no task nonsense"):
        eval_tasks.main([str(ckpt), "--tasks=nonsense"])
    assert tiny.state(ckpt.parent)["step"] == report["step"]


def test_generation_stops_at_a_string(ckpt):  # noqa: F811
    pytest.importorskip("lm_eval")
    state = checkpoint.read(ckpt)
    model, text = checkpoint.build_model(state), CheckpointTokenizer(state)
    lm = eval_tasks.harness_model(model, text, print)
    whole = lm.write("Where did", {"max_gen_toks": 20})
    end = whole[len(whole) // 2:][:2]
    assert lm.write("Where did", {"until": [end], "max_gen_toks": 20}) == whole[:whole.index(end)]
    assert lm.write("word " * 500, {"until": "\n\n", "max_gen_toks": 5}) is not None
