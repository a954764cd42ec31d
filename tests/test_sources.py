"""sources.py, and parts: files that are cut, real schemas, the hub, many machines."""
import random
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import microsynth
import prepare
import shards
import sources

COLUMNS = ("synth_id language exercise model query query_seed_url query_seed_text "
           "additional_seed_url seed_license constraints script synthetic_reasoning "
           "synthetic_answer").split()
EXERCISES = {"memorization": 906, "mcq": 21, "constrained writing": 17, "math exercise": 16,
             "rag": 10, "math mcq": 9, "creative writing": 8, "editing": 8, "cooking": 5}


def words(rng, n):
    """n characters or so of made-up prose, of a vocabulary that is skewed as a real one's."""
    text = []
    while n > 0:
        i = int(rng.paretovariate(0.7)) % 50_000
        size = 1 + (i > 40) + (i > 900)
        word = "".join(microsynth.SYLLABLES[i // 80**k % 80] for k in range(size))
        text.append(word if rng.random() > 0.02 else f"\u00e9{word},")
        n -= len(word) + 1
    return " ".join(text)


def synth_folder(folder, rows, shards=3, seed=0, scale=1.0):
    """Parquet files in the schema of PleIAs/SYNTH, a row group each, with its nulls and quirks."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    schema = pa.schema([(name, pa.string()) for name in COLUMNS] + [("words", pa.int64())])
    folder.mkdir(parents=True)
    for shard in range(shards):
        rng, columns = random.Random(f"{seed} {shard}"), {name: [] for name in schema.names}
        for i in range(rows // shards):
            exercise = rng.choices(list(EXERCISES), EXERCISES.values())[0]
            query, trace, answer = (words(rng, n * scale * rng.lognormvariate(0, 0.4))
                                    for n in (221, 2078, 1454))
            row = dict.fromkeys(COLUMNS, None) | {
                "synth_id": f"s{shard}_{i}", "exercise": exercise, "query": query,
                "language": rng.choices(["en", "de", None], [80, 19, 1])[0], "constraints": "",
                "synthetic_reasoning": "" if "mcq" in exercise else trace,
                "synthetic_answer": None if rng.random() < 0.001 else answer,
                "query_seed_text": words(rng, 500 * scale), "words": len(answer) // 6}
            for name in columns:
                columns[name].append(row[name])
        pq.write_table(pa.table(columns, schema), folder / f"synth_{shard + 1:03d}.parquet",
                       row_group_size=rows)
    return folder


@pytest.fixture(scope="module")
def synth(tmp_path_factory):
    return synth_folder(tmp_path_factory.mktemp("synth") / "files", 300, scale=0.1)


def content(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def decoded(folder):
    data = prepare.Dataset(folder, verify=True)
    return [data.encoding().decode(data.doc(i)[1:-1]) for i in range(data.n_docs)], data


HARD = "\ufeffTitle\r\n\r\n" + "line of words\n" * 90 + "\n\n\n" + "\u00e9\U0001f600" * 5000 + (
    " a b" * 4000 + "\r\n \t\r\n" + "x" * 9000 + "\n\nend")


@pytest.mark.parametrize("piece, limit", [(4 << 20, 0), (5000, 0), (4096, 4096), (1000, 300)])
def test_one_file_becomes_documents_and_comes_back(tmp_path, monkeypatch, capsys, piece, limit):
    monkeypatch.setattr(sources, "PIECE", piece)
    (tmp_path / "input.txt").write_bytes(HARD.encode())
    texts, data = decoded(prepare.build("text", [str(tmp_path / "input.txt")], "t", tmp_path,
                                        vocab_size=300, document_bytes=limit))
    assert "".join(texts) == HARD[1:]  # exact, but for the byte order mark
    limit = limit or 4096
    assert max(len(text.encode()) for text in texts) <= limit and data.n_docs > 12
    assert data.meta["options"]["document_bytes"] == limit and data.meta["repaired"] == {}
    assert ("so few text files" in capsys.readouterr().out) == (limit == 4096 and piece != 4096)


def test_paragraphs_end_at_blank_lines_and_many_files_stay_whole(tmp_path):
    text = "".join(f"Speaker {i}:\n" + "word " * 30 + "\n\n" for i in range(400))
    (tmp_path / "one.txt").write_text(text)
    texts, _ = decoded(prepare.build("text", [str(tmp_path)], "one", tmp_path, vocab_size=300))
    assert all(text.startswith("Speaker") for text in texts) and "".join(texts) == text
    for i in range(25):
        (tmp_path / "many" / f"{i:02d}").mkdir(parents=True)
        (tmp_path / "many" / f"{i:02d}" / "a.txt").write_text(text)
    texts, data = decoded(prepare.build("text", [str(tmp_path / "many")], "all", tmp_path,
                                        vocab_size=300))
    assert texts == [text] * 25 and data.meta["options"]["document_bytes"] == 0


def test_synths_own_schema(synth, tmp_path):
    texts, data = decoded(prepare.build("synth", [str(synth)], data_dir=tmp_path, vocab_size=400))
    assert data.n_docs + data.meta["skipped"].get("synthetic_answer null", 0) == 300
    assert set(data.labels) <= set(EXERCISES) and data.labels[data.label_ids[0]] == "memorization"
    for text, label in zip(texts, data.label_ids):
        assert ("<think>" in text) == ("mcq" not in data.labels[label])


@pytest.mark.parametrize("n", [2, 3, 5])
def test_parts_of_many_machines_join_to_what_one_writes(synth, tmp_path, monkeypatch, n):
    monkeypatch.setattr(sources, "MIN_SHARD", 1)  # a shard a file
    whole = prepare.build("synth", [str(synth)], data_dir=tmp_path / "1", vocab_size=400, workers=1)
    for i in range(1, n + 1):  # each machine has its own copy of the input, somewhere
        mine = shutil.copytree(synth, tmp_path / str(i) / "deep")
        prepare.main(["synth", str(mine), f"--data_dir={tmp_path}/m{i}", "--vocab_size=400",
                      f"--part={i}/{n}", "--workers=1"])
        shutil.rmtree(mine)
    parts = [str(path) for path in tmp_path.glob("m?/synth.part*")]
    with pytest.raises(SystemExit):
        prepare.main(["merge", *parts[1:], "--name=synth", f"--data_dir={tmp_path}/all"])
    for _ in range(2):  # the parts stay
        prepare.main(["merge", *parts, "--name=synth", f"--data_dir={tmp_path}/all", "--overwrite"])
        assert content(tmp_path / "all" / "synth") == content(whole)


@pytest.mark.parametrize("args, message", [
    (["--part=3/2"], "part must be"), (["--hub"], "takes no paths"),
    (["--document_bytes=9000"], "no effect"), (["--vocab_size=400", "--part=1/2"], "differ"),
])
def test_mistakes_with_parts_and_the_hub(synth, tmp_path, capsys, args, message):
    base = ["synth", str(synth), f"--data_dir={tmp_path}"]
    with pytest.raises(SystemExit) as stop:
        prepare.main([*base, *args])
        prepare.main([*base, "--vocab_size=500", "--part=2/2"])
        prepare.main(["merge", *map(str, tmp_path.glob("*.part*")), f"--data_dir={tmp_path}",
                      "--name=all"])
    assert stop.value.code == 2 and message in capsys.readouterr().err


class Hub:
    """What is used of huggingface_hub, on a folder; each download is counted, some fail."""

    def __init__(self, folder, fail_at=()):
        self.folder, self.fail_at, self.calls = folder, fail_at, []
        self.sha = self.main = "0d6813a"
        self.HfApi, self.__spec__ = lambda: self, True

    def dataset_info(self, repo, revision):
        assert repo == "PleIAs/SYNTH"
        return SimpleNamespace(sha=self.main if revision == "main" else revision)

    def list_repo_tree(self, repo, path, revision, repo_type):
        assert revision == self.sha and repo_type == "dataset"
        for file in sorted(self.folder.iterdir(), reverse=True):
            yield SimpleNamespace(path=file.name, size=file.stat().st_size)
        yield SimpleNamespace(path="README.md", size=1)

    def hf_hub_download(self, repo, path, repo_type, revision, local_dir):
        assert revision == self.sha
        target = Path(local_dir, path)
        if not target.exists():
            self.calls.append(path)
            if len(self.calls) in self.fail_at:
                raise ConnectionError("lost")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.folder / path, target)
        return str(target)


def test_the_hub_is_fetched_file_by_file(synth, tmp_path, monkeypatch, capsys):
    hub = Hub(synth, fail_at=(2, 4))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setattr(sources, "MIN_SHARD", 1)  # a file a shard, as if they were large
    seen, work = [], shards.tokenize_shard
    monkeypatch.setattr(shards, "tokenize_shard", lambda job: (work(job), seen.append(
        len(list(tmp_path.glob("*/parts/*.hub/*.parquet")))))[0])
    prepare.build("microsynth", (), "tokens", tmp_path, docs=100, vocab_size=400)
    args = ["synth", "--hub", f"--data_dir={tmp_path}", "--workers=1", "--tokenizer=tokens"]
    for _ in range(2):
        with pytest.raises(SystemExit):
            prepare.main(args)
        assert "lost; the same command goes on" in capsys.readouterr().err
        hub.main = "moved on"  # a killed run stays with what it began with
    prepare.main(args)
    assert seen == [0] * len(seen) and len(hub.calls) == 5  # each once, and two that failed
    prepare.build("synth", [str(synth)], "local", tmp_path, tokenizer="tokens", workers=1)
    fetched, local = content(tmp_path / "synth"), content(tmp_path / "local")
    assert fetched.pop("meta.json") != local.pop("meta.json") and fetched == local
    assert prepare.Dataset(tmp_path / "synth").meta["options"]["hub"] == hub.sha
    # Read for the tokenizer, then for itself: still one download each.
    hub.calls, hub.fail_at = [], ()
    prepare.build("synth", (), "again", tmp_path, hub=hub.sha, workers=1, vocab_size=400)
    assert sorted(hub.calls) == sorted(file.name for file in synth.iterdir())
