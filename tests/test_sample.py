"""sample.py: text that is the model's own, with and without the cache."""
import contextlib

import pytest
import torch

import checkpoint
import prepare
import sample
import tiny
from model import ModelConfig, Transformer
from tokenizer import CheckpointTokenizer

SHAPES = {"san": {}, "ffn": {"use_ffn": True, "n_layer": 1}, "rms": {"norm": "rms", "n_kv_head": 4},
          "none": {"qk_norm": False, "residual": "standard", "post_norm": True}}  # fmt: skip


def make(vocab_size=50, block_size=32, **shape):
    """A model whose weights are large enough for its choices to matter."""
    cfg = ModelConfig(**{"n_layer": 3, "n_embd": 32, "n_head": 4, "n_kv_head": 2, **shape},
                      vocab_size=vocab_size, block_size=block_size)
    model = Transformer(cfg, seed=1).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)
    return model


def ids(model, prompt, **options):
    return list(sample.generate(model, prompt, **{"vocab_size": 50, **options}))


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 5},
                                     {"temperature": 1.3, "top_p": 0.6, "num_samples": 3}])
def test_the_cache_changes_no_token(shape, options):
    model, options = make(**SHAPES[shape]), {"max_new_tokens": 100, **options}
    rows = range(options.get("num_samples", 1))
    choice = [options.get(k, v) for k, v in (("temperature", 0), ("top_k", 0), ("top_p", 1.0))]
    for prompt in ([3], [3, 1, 4, 1, 5], list(range(32))):
        tokens, seen = ids(model, prompt, **options), torch.tensor([prompt] * len(rows))
        generators = [torch.Generator().manual_seed(i) for i in rows]
        for step in tokens:
            new = sample.choose(model(seen)[:, -1], generators, *choice)
            assert new.tolist() == step
            seen = torch.cat((seen, new[:, None]), 1)
        assert len(tokens) == 33 - len(prompt)  # the last one needs no position of its own


def test_the_cache_gives_the_logits_of_a_whole_row():
    model, idx = make().double(), torch.randint(50, (2, 32))
    model.compute_dtype, caches = torch.float64, [sample.Cache(32) for _ in range(3)]
    with torch.no_grad():
        whole = model(idx)
        for at, step in ((0, 7), (7, 1), (8, 20), (28, 4)):
            logits = sample.next_logits(model, idx[:, at:at + step], caches)
            assert torch.allclose(logits, whole[:, at + step - 1].float(), atol=1e-5)


def test_what_may_be_drawn():
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0, -torch.inf]]).repeat(4000, 1)
    generators = [torch.Generator().manual_seed(i) for i in range(4000)]

    def drawn(temperature, top_k=0, top_p=1.0):
        return torch.bincount(sample.choose(logits, generators, temperature, top_k, top_p),
                              minlength=5) / 4000
    assert torch.allclose(drawn(1.0), logits[0].softmax(0), atol=0.03)
    assert torch.allclose(drawn(2.0), (logits[0] / 2).softmax(0), atol=0.03)
    for sure in (0,), (1.0, 1), (1.0, 0, 0.01), (1e-40,):
        assert drawn(*sure)[1] == 1
    assert (drawn(1.0, top_k=2) > 0).tolist() == [False, True, True, False, False]
    # 0.64 is not 0.7 of the probability, so the second belongs to it.
    assert (drawn(1.0, top_p=0.7) > 0).tolist() == [False, True, True, False, False]
    assert (drawn(1.0, top_p=0.6) > 0).tolist() == [False, True, False, False, False]


def test_no_id_beyond_the_corpus_and_samples_are_independent():
    model = make(vocab_size=64)
    tokens = ids(model, [1], vocab_size=7, temperature=5.0, num_samples=40)
    assert {t for step in tokens for t in step} <= set(range(7))
    few = ids(model, [1], vocab_size=7, temperature=5.0, num_samples=3)
    assert [step[:3] for step in tokens] == few != ids(model, [1], vocab_size=7, temperature=5.0,
                                                       num_samples=3, seed=1)
    stopped = ids(model, [1], vocab_size=7, temperature=5.0, num_samples=40, stops=[2])
    for column, full in zip(zip(*stopped), zip(*tokens)):
        end = full.index(2) if 2 in full else len(stopped)
        assert list(column) == [*full[:end], *[-1] * (len(stopped) - end)]


@pytest.mark.parametrize("length", [0, 33])
def test_a_prompt_that_does_not_fit(length):
    with pytest.raises(ValueError, match=f"{length} tokens does not fit block_size 32"):
        ids(make(), [1] * length)


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory):
    """A checkpoint of a few steps on the tiny corpus, in a model with ids that the corpus lacks."""
    folder = tmp_path_factory.mktemp("run")
    with contextlib.redirect_stdout(None):
        assert tiny.run(folder, max_steps=3, eval_every=0, vocab_size=400) == 0
    return folder / "ckpt.pt"


def main(capsys, *args):
    code = 0
    try:
        sample.main(list(map(str, args)))
    except (sample.UserError, sample.DataError) as error:
        code = str(error)
    return code, *capsys.readouterr()


def test_from_the_command_line(ckpt, capsys):
    args = ckpt, "--prompt=Where did", "--max_new_tokens=20", "--seed=5"
    code, text, notes = main(capsys, *args)
    assert code == 0 and text.startswith("Where did") and "20 tokens" in notes
    assert main(capsys, *args)[1] == text
    several = main(capsys, *args, "--num_samples=3")[1].split("--- sample ")
    assert several[1] == f"1\n{text}" and len(set(several)) == 4
    assert "stopped at block_size 64" in main(capsys, ckpt.parent, "--temperature=0")[2]
    assert "stopped" not in main(capsys, ckpt, "--temperature=0", "--max_new_tokens=64")[2]


def test_a_question_is_wrapped_as_in_the_corpus(ckpt):
    state = checkpoint.read(ckpt)
    text = CheckpointTokenizer(state)
    data = prepare.Dataset(tiny.corpora() / "tiny")
    for i in range(20):
        doc = data.doc(i).tolist()
        query = data.encoding().decode(doc).split("user\n")[1].split("<|im_end|>")[0]
        prompt = text.prompt(query, chat=True)
        assert doc[:len(prompt)] == prompt
    assert text.prompt("<|eos|>", chat=False)[0] == text.special["<|bos|>"]
    assert max(text.prompt("<|eos|><think>", chat=False)[1:]) < text.special["<|bos|>"]


def test_mistakes_end_in_one_line(ckpt, tmp_path, capsys):
    long = "--prompt=" + "word " * 100
    for args, message in (
            ((ckpt, long), "tokens, block_size is 64 (--crop)"), ((), "give one checkpoint"),
            ((ckpt, "--top_p=0"), "top_p above 0"), ((ckpt, "--seed=-1"), "no negative"),
            ((ckpt, "--chat"), "needs a --prompt"), ((tmp_path / "x.pt",), "no checkpoint"),
            ((ckpt, "--data=nowhere"), "no tokenizer at"), ((ckpt, "--promt=x"), "did you mean")):
        assert message in main(capsys, *args)[0]
    code, text, notes = main(capsys, ckpt, long, "--crop", "--max_new_tokens=10")
    assert code == 0 and "tokens are cut off" in notes and "10 tokens" in notes
    prepare.build("microsynth", data_dir=tmp_path, docs=300, vocab_size=420, workers=1)
    folder = f"--data={tmp_path / 'microsynth'}"
    assert "420 ids, the model 400" in main(capsys, ckpt, folder)[0]
    other = f"--data={tiny.corpora() / 'other'}"
    assert "not the corpus" in main(capsys, ckpt, other, "--max_new_tokens=1")[2]
