"""prepare.py and sources.py: what becomes of text, hard or broken, killed or not."""
import base64
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import microsynth
import prepare
import shards

HARD = ["plain text", " \t two  leading\r\nand trailing  ", "<|im_start|>system <|bos|></think>",
        "a" * 300_000, " " * 300_000 + "x", "nul \0, \u2028 and \x85 and \x0b", "12345678901",
        "\U0001f469\u200d\U0001f680 e\u0301 \u0e20\u0e32\u0e29\u0e32 \u0627\u0644\u0639", "<|eos|>"]
CHAT = dict(query="What?", synthetic_reasoning="Hm.", synthetic_answer="That.", exercise="rag")


def write_jsonl(path, records):
    path.write_bytes(b"".join(json.dumps(r).encode() + b"\n" for r in records))
    return str(path)


def content(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_text_comes_back_and_never_becomes_a_special(tmp_path):
    lines = write_jsonl(tmp_path / "hard.jsonl", [{"text": text} for text in HARD])
    data = prepare.Dataset(prepare.build("jsonl", [lines], "hard", tmp_path, vocab_size=300), True)
    assert data.n_docs == len(HARD) and data.vocab_size == 300
    for i, text in enumerate(HARD):
        bos, *ids, eos = data.doc(i).tolist()
        assert data.encoding().decode(ids) == text
        assert (bos, eos) == (294, 295) and max(ids) < 294
        assert data.token_bytes()[ids].sum() == len(text.encode())


def test_faulty_documents_are_counted_and_cost_only_themselves(tmp_path, capsys):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "first"}\r\n\n{"text": null}\n{"text": " \\n"}\n[1]\n'
                     b'{"te\n{"text": 7}\n{"text": "half \\ud83d"}\n'
                     b'{"text": "pair \\ud83d\\ude00"}\n{"text": "\xff"}\n{"other": 1}\n'
                     b'{"text": "u\xe2\x80\xa8no newline"}')
    data = prepare.Dataset(prepare.build("jsonl", [str(path)], "bad", tmp_path, vocab_size=262))
    texts = [data.encoding().decode(data.doc(i)[1:-1]) for i in range(data.n_docs)]
    assert texts == ["first", "half \ufffd", "pair \U0001f600", "\ufffd", "u\u2028no newline"]
    assert data.meta["skipped"] == {"text null": 2, "text empty": 1, "text not a string": 1,
                                    "broken JSON lines": 2}
    assert data.meta["repaired"] == {"invalid UTF-8": 1, "lone surrogates": 1}
    assert f"{path}:5" in capsys.readouterr().out


def test_chat_document_and_its_regions(tmp_path):
    changes = {}, {"synthetic_reasoning": ""}, {"query": None}, {"exercise": None}
    path = write_jsonl(tmp_path / "chat.jsonl", [CHAT | change for change in changes])
    data = prepare.Dataset(prepare.build("jsonl", [path], "chat", tmp_path, vocab_size=262))
    assert data.encoding().decode(data.doc(0)) == (
        "<|bos|><|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n"
        "<think>\nHm.\n</think>\nThat.<|im_end|><|eos|>")
    assert "<think>" not in data.encoding().decode(data.doc(1))
    assert data.labels == ["rag", "unknown"] and data.label_ids.tolist() == [0, 0, 1]
    # One token a byte: markers are other, a header and the line end behind it are their turn's.
    found = prepare.token_regions(data.doc(0), data.specials).tolist()
    query, trace, answer, other = range(4)
    assert found == ([other] * 2 + [query] * 10 + [other] + [query] + [other] + [answer] * 10
                     + [other] + [trace] * 5 + [other] + [answer] * 6 + [other] * 2)
    assert prepare.token_regions(np.array([256, 65, 257]), data.specials).tolist() == [3, 4, 3]


def test_entropy_is_the_generators_by_region(tmp_path):
    data = prepare.Dataset(prepare.build("microsynth", data_dir=tmp_path, docs=20, vocab_size=300))
    for i, record in enumerate(microsynth.generate(20)):
        for region, nats in zip(prepare.REGIONS, data.entropy[i]):
            assert nats == pytest.approx(record["entropy"].get(region, 0.0), rel=1e-6)
        assert data.labels[data.label_ids[i]] == record["exercise"]


def test_bytes_do_not_depend_on_workers_order_folder_or_a_kill(tmp_path, monkeypatch):
    monkeypatch.setattr("sources.MIN_SHARD", 1 << 12)
    texts = [f"{record['text']}\r\n" for record in microsynth.generate(60, variant="web")]
    for folder in "ab":
        for i, text in enumerate(texts):
            (tmp_path / folder / str(i % 7)).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / str(i % 7) / f"{i}.txt").write_bytes(text.encode() * 20)
    options = dict(name="same", vocab_size=300)
    first = prepare.build("text", [str(tmp_path / "a")], data_dir=tmp_path, workers=1, **options)
    paths = sorted(map(str, (tmp_path / "b").rglob("*.txt")), reverse=True)
    assert content(prepare.build("text", paths + paths[:3], data_dir=tmp_path / "2", workers=2,
                                 **options)) == content(first)
    # Stopped after every shard, and inside the merge.
    work, calls = shards.tokenize_shard, []

    def stop_now_and_then(job):
        calls.append(job)
        if len(calls) % 2:
            raise KeyboardInterrupt
        return work(job)
    monkeypatch.setattr(shards, "tokenize_shard", stop_now_and_then)
    monkeypatch.setattr(os, "fsync", lambda f: calls.append(f) or len(calls) % 3 or 1 / 0)
    for _ in range(1000):
        try:
            third = prepare.build("text", paths, data_dir=tmp_path / "three", workers=1, **options)
            break
        except (KeyboardInterrupt, ZeroDivisionError):
            with pytest.raises(prepare.DataError, match="unfinished"):
                prepare.Dataset(tmp_path / "three" / "same")
    assert content(third) == content(first) and os.listdir(tmp_path / "three") == ["same"]


def test_a_killed_run_is_finished_by_the_next(tmp_path):
    paths = [write_jsonl(tmp_path / f"{i}.jsonl", [{"text": HARD[i] * 1000}] * 200)
             for i in (0, 1, 2, 6)]
    args = ["jsonl", *paths, f"--data_dir={tmp_path}", "--vocab_size=300", "--sample_bytes=1e5"]
    run = subprocess.Popen([sys.executable, prepare.__file__, *args, "--workers", "2"])
    while not list(tmp_path.glob("jsonl.partial/parts/00000?/part.json")):
        assert run.poll() is None
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.wait()
    with pytest.raises(prepare.DataError, match="unfinished"):
        prepare.Dataset(tmp_path / "jsonl")
    prepare.main([*args, "--workers=1"])
    killed = content(tmp_path / "jsonl")
    prepare.main([*args, "--workers=1", "--overwrite"])
    assert content(tmp_path / "jsonl") == killed and not list(tmp_path.glob("*.partial"))


def test_a_panic_of_the_tokenizer_costs_one_document(tmp_path, monkeypatch):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "abc"}] * 2)
    first = prepare.build("jsonl", [path], "first", tmp_path, vocab_size=262)
    monkeypatch.setattr("tokenizer.MAX_PIECE", 10**9)  # without it the regex engine overflows
    texts = [{"text": text} for text in ("before", " " * 1_500_000 + "x", "after")]
    path = write_jsonl(tmp_path / "b.jsonl", texts)
    data = prepare.Dataset(prepare.build("jsonl", [path], "b", tmp_path, tokenizer=str(first)))
    assert [data.encoding().decode(data.doc(i)[1:-1]) for i in (0, 1)] == ["before", "after"]
    assert data.meta["skipped"] == {"tokenizer failed": 1}


def test_parquet_columns(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = {"a": pa.array([None, "", " ", "text"]), "b": pa.nulls(2),
             "c": pa.array(["c", "c"]).dictionary_encode(), "e": pa.array([], pa.string()),
             "d": pa.array(["large", "strings"], pa.large_string())}
    for name, values in texts.items():
        lists = pa.array([["a"]] * len(values), pa.list_(pa.string()))
        table = pa.table({"id": range(len(values)), "text": values, "many": lists})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1)
    data = prepare.Dataset(prepare.build("parquet", [str(tmp_path)], "p", tmp_path, vocab_size=262))
    found = [data.encoding().decode(data.doc(i)[1:-1]) for i in range(data.n_docs)]
    assert found == ["text", "c", "c", "large", "strings"]
    assert data.meta["skipped"] == {"text null": 3, "text empty": 2}
    for column, fault in ("id", "int64, not text.* id, "), ("x", "no column"), ("many", "list<"):
        with pytest.raises(prepare.DataError, match=fault):
            prepare.build("parquet", [str(tmp_path)], "q", tmp_path, column=column)
    whole = (tmp_path / "a.parquet").read_bytes()
    for broken in (whole[:len(whole) // 2], b"", b"text"):
        (tmp_path / "z.parquet").write_bytes(broken)
        with pytest.raises(prepare.DataError, match="z.parquet is not a whole parquet file"):
            prepare.build("parquet", [str(tmp_path)], "q", tmp_path)
    assert not list(tmp_path.glob("q*"))


@pytest.mark.parametrize("args, message", [
    (["jsonll"], "there are microsynth"),
    (["text", "none/*.txt"], "no file matches none/*.txt"),
    (["microsynth", "--vocab_sise=9"], "did you mean vocab_size?"),
    (["microsynth", "--vocab_size=261"], "must be 262"),
    (["microsynth", "--docs=1"], "1 documents, but"),
    (["microsynth", "--name=../x"], "plain folder name"),
    (["microsynth", "--mix=nonsense"], "mix"),
    (["text", "empty.txt"], "skipped: {'text empty': 1}"),
    (["microsynth", "--tokenizer=none"], "no tokenizer at"),
    (["microsynth", "--tokenizer=x", "--vocab_size=512"], "no effect"),
    (["text", "empty.txt", "--docs=5"], "--docs has no effect on this source"),
])
def test_mistakes_end_in_one_line(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_bytes(b" \n")
    with pytest.raises(SystemExit) as stop:
        prepare.main(args)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and message in error and error.count("\n") == 1
    assert os.listdir() == ["empty.txt"] or os.listdir("data") == []


def test_the_largest_id_fits(tmp_path):
    pairs = [bytes([i, j]) for i in range(256) for j in range(256)]
    ranks = [bytes([i]) for i in range(256)] + pairs[:65530 - 256]
    spec = {"pattern": "(?s:.+)", "ranks": [base64.b64encode(token).decode() for token in ranks],
            "specials": {name: 65530 + i for i, name in enumerate(prepare.SPECIALS)}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "ab"}] * 3)
    data = prepare.Dataset(prepare.build("jsonl", [path], "big", tmp_path, tokenizer=str(tmp_path)))
    assert data.vocab_size == 65536 and data.doc(0)[[0, -1]].tolist() == [65530, 65531]
