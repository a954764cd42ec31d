"""Where documents come from: the embedded corpora, text files, JSON lines, parquet, the hub.

prepare.py asks plan() to cut the input into shards, and its workers read_documents() of a shard.
Nothing is written but what --hub fetches. JSON lines end at LF only; text files keep their line
ends and lose a byte order mark; broken UTF-8 and lone surrogates become U+FFFD and are counted.
"""
import glob
import importlib.util
import itertools
import json
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import microsynth
from dataset import DataError

SOURCES = {"microsynth": "micro", "microweb": "micro", "text": "text", "jsonl": "jsonl",
           "parquet": "parquet", "synth": "parquet", "fineweb-edu": "parquet"}
CHAT = ("query", "synthetic_answer", "synthetic_reasoning")  # of SYNTH; the last may be empty
HUB = {"synth": ("PleIAs/SYNTH", None), "fineweb-edu": ("HuggingFaceFW/fineweb-edu", "sample/10BT")}
PIECE = 4 << 20  # bytes of jsonl or text
FEW_FILES, DOCUMENT = 20, 4096  # a corpus of fewer text files is cut into documents of these bytes
MIN_SHARD, MAX_SHARD = 1 << 20, 64 << 20  # bytes; a kill costs each worker one shard


# ---------------------------------------------------------------------------- reading

@dataclass
class Tally:
    """What was left out or mended, by reason, and where the first broken line is."""
    skipped: Counter = field(default_factory=Counter)
    repaired: Counter = field(default_factory=Counter)
    first_bad: list = field(default_factory=list)

    def decode(self, data):
        """Text of UTF-8 bytes; each document with broken ones is counted."""
        text = data.decode("utf-8", "replace")
        # Only a text with replacement characters is decoded twice.
        if "\ufffd" in text and text.encode() != data:
            self.repaired["invalid UTF-8"] += 1
        return text


def read_micro(piece, job, tally):
    _, start, stop, _ = piece
    return microsynth.generate(stop - start, start=start, **job["micro"])


def read_text(piece, job, tally):
    """A whole file, or the documents that begin inside the piece."""
    path, start, stop, _ = piece
    limit = job["document_bytes"]
    with open(path, "rb") as file:
        # Both neighbours of a seam look at the same bytes, so they agree on where it is.
        start, stop = (at + last_end(file.read(limit)) if at and limit and file.seek(at) else at
                       for at in (start, stop))
        file.seek(start)
        data = file.read(stop - start).removeprefix(b"" if start else b"\xef\xbb\xbf")
    at = 0
    while at < len(data):
        rest = not limit or len(data) - at <= limit
        end = len(data) if rest else at + last_end(data[at:at + limit])
        yield {"text": tally.decode(data[at:end])}
        at = end


def last_end(data):
    """Where a paragraph ends last in some bytes; if none does, a line, a word, a character."""
    for marks in (b"\n\n", b"\n\r\n"), (b"\n",), (b" ",):
        if end := max(data.rfind(mark) + len(mark) if mark in data else 0 for mark in marks):
            return end
    # In UTF-8 the bytes 10xxxxxx go on with a character.
    return next((i for i in range(len(data) - 1, 0, -1) if data[i] & 0xC0 != 0x80), len(data))


def read_jsonl(piece, job, tally):
    """The lines that begin inside the piece."""
    path, at, stop, _ = piece
    with open(path, "rb") as file:
        if at:
            file.seek(at - 1)
            at += len(file.readline()) - 1
        while at < stop and (line := file.readline()):
            begin, at = at, at + len(line)
            line = line if begin else line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            try:
                record = json.loads(tally.decode(line))
                if not isinstance(record, dict):
                    raise ValueError
                yield pick(record, job["columns"])
            except (ValueError, RecursionError):
                tally.skipped["broken JSON lines"] += 1
                tally.first_bad = tally.first_bad or [path, begin]


def read_parquet(piece, job, tally):
    """The rows of some row groups, in batches; strings as bytes, so that a bad one costs itself."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    path, start, stop, _ = piece
    path = fetch(path, job) if job["hub"] else path
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            if job["hub"]:  # planned without a look at it
                stop = file.num_row_groups
                choose_columns(path, types(file.schema_arrow), *job["hub"][2:])
            names = [name for name in job["columns"] if name in file.schema_arrow.names]
            for batch in file.iter_batches(500, row_groups=range(start, stop), columns=names):
                columns = []
                for values in map(batch.column, names):
                    if pa.types.is_dictionary(values.type):
                        values = values.dictionary_decode()
                    columns.append(values.cast(pa.large_binary()).to_pylist())
                for row in zip(*columns):
                    texts = (None if value is None else tally.decode(value) for value in row)
                    yield pick(dict(zip(names, texts)), job["columns"])
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is damaged: {str(error).splitlines()[0]}") from None


def fetch(path, job):
    """Download a file of the hub beside the job's folder, unless it is there; returns its path."""
    from huggingface_hub import hf_hub_download
    repo, revision = job["hub"][:2]
    try:
        return hf_hub_download(repo, path, repo_type="dataset", revision=revision,
                               local_dir=job["folder"] + ".hub")
    except Exception as error:  # the network fails in many ways
        raise DataError(f"{repo}/{path} cannot be fetched: {error}; the same command goes on from "
                        "there") from None


READERS = {"micro": read_micro, "text": read_text, "jsonl": read_jsonl, "parquet": read_parquet}


def pick(record, columns):
    """SYNTH's columns by their names, or the only column as text."""
    if len(columns) == 1:
        return {"text": record.get(columns[0])}
    return {name: record.get(name) for name in columns}


def read_documents(job, tally):
    """Yield the documents of a shard, their texts checked and mended; count the others."""
    for record in itertools.chain.from_iterable(
            READERS[job["kind"]](piece, job, tally) for piece in job["pieces"]):
        for name in CHAT if "query" in record else ("text",):
            text = record.get(name)
            fault = ("null" if text is None else "not a string" if not isinstance(text, str) else
                     "" if text.strip() else "empty")
            if fault and name != "synthetic_reasoning":
                tally.skipped[f"{name} {fault}"] += 1
                break
            # JSON hands halves of surrogate pairs through; UTF-8 has no bytes for them.
            record[name] = "" if fault else re.sub("[\ud800-\udfff]", "\ufffd", text)
            tally.repaired["lone surrogates"] += not fault and record[name] != text
        else:
            yield record


# ---------------------------------------------------------------------------- planning

def find_files(paths, kind):
    """The files behind paths, globs and folders, each once, in the order of their full paths."""
    suffix, found = ".txt" if kind == "text" else "." + kind, set()
    for path in paths:
        hits = [path] if os.path.exists(path) else glob.glob(path, recursive=True)
        if os.path.isdir(path):
            hits = glob.glob(f"{glob.escape(path)}/**/*{suffix}", recursive=True)
        hits = [os.path.abspath(hit) for hit in hits if os.path.isfile(hit)]
        if not hits:
            raise DataError(f"no file matches {path}" + f"/**/*{suffix}" * os.path.isdir(path))
        found.update(hits)
    if not found:
        raise DataError(f"{kind} needs paths to read: files, folders or globs in quotes")
    return sorted(found, key=lambda path: Path(path).parts)


def choose_columns(path, found, source, column):
    """Columns to read: one of text, or SYNTH's where they are. found: {name: type, as a word}."""
    chat = source == "synth" or not column and {"query", "synthetic_answer"} <= set(found)
    listed = f"; the columns are {', '.join(found)} (--column=)"
    for name in CHAT if chat else (column or "text",):
        if name not in found and name != "synthetic_reasoning":
            raise DataError(f"{path} has no column {name!r}{listed}")
        kind = found.get(name, "null")
        if not re.fullmatch("null|str|(dictionary<values=)?(large_)?(string|binary)(_view)?(, .*)?",
                            kind):
            raise DataError(f"{path}: column {name!r} holds {kind}, not text{listed}")
    return [*CHAT, "exercise"] if chat else [column or "text"]


def byte_pieces(files, step):
    """Pieces of step bytes, the last of each file shorter; an empty file is one piece."""
    sizes = ((path, os.path.getsize(path)) for path in files)
    return [(path, at, min(at + step, size), min(step, size - at))
            for path, size in sizes for at in range(0, max(size, 1), step)]


def plan_jsonl(files, source, column):
    """Pieces of some MB, and the columns, chosen by the first lines of the first file with any."""
    for path in files:
        found = {}
        with open(path, "rb") as file:
            for line in itertools.islice(file, 100):
                try:
                    for name, value in json.loads(line.decode("utf-8-sig", "replace")).items():
                        if found.get(name, "null") == "null":
                            found[name] = "null" if value is None else type(value).__name__
                except (ValueError, RecursionError, AttributeError):
                    continue
        if found:
            return byte_pieces(files, PIECE), choose_columns(path, found, source, column)
    raise DataError(f"no JSON object in the first 100 lines of {files[0]}")


def types(schema):
    """{column: type, as a word} of a parquet file."""
    return {field.name: str(field.type) for field in schema}


def plan_parquet(files, source, column):
    """A piece a row group, and the columns. Every footer is opened: broken files are found now."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    pieces, columns = [], []
    for path in files:
        try:
            with pq.ParquetFile(path) as file:
                schema, meta = file.schema_arrow, file.metadata
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} is not a whole parquet file: "
                            f"{str(error).splitlines()[0]}") from None
        found = choose_columns(path, types(schema), source, column)
        if columns and columns != found:
            raise DataError(f"{path} has {', '.join(found)} to read, {files[0]} has "
                            f"{', '.join(columns)}: prepare them apart, or choose with --column=")
        columns = found
        for group in range(meta.num_row_groups):
            chunks = map(meta.row_group(group).column, range(meta.num_columns))
            size = sum(c.total_uncompressed_size for c in chunks if c.path_in_schema in columns)
            pieces.append((path, group, group + 1, size))
    return pieces, columns


def plan_hub(source, revision):
    """A piece a file, and (repository, commit, ...) of the dataset as the hub has it now."""
    from huggingface_hub import HfApi
    repo, folder = HUB[source]
    try:
        commit = HfApi().dataset_info(repo, revision=revision).sha
        files = HfApi().list_repo_tree(repo, folder, revision=commit, repo_type="dataset")
        pieces = sorted((f.path, 0, 0, f.size) for f in files if f.path.endswith(".parquet"))
    except Exception as error:
        raise DataError(f"{repo} cannot be listed: {error}") from None
    print(f"{repo}: {len(pieces)} files; --hub={commit} fetches the same again")
    return pieces, (repo, commit, source, "")


def plan(source, paths, options):
    """Cut the input into shards whose size does not depend on the workers: one job each.

    A piece of input is (path, start, stop, bytes): of bytes in text and jsonl, row groups in
    parquet, documents in an embedded corpus.
    """
    kind, columns, micro, hub, limit = SOURCES[source], [], {}, (), 0
    for module in ["pyarrow"] * (kind == "parquet") + ["huggingface_hub"] * bool(options.hub):
        if not importlib.util.find_spec(module):
            raise DataError(f"{source} needs {module}: pip install -e '.[data]'")
    if kind == "micro":
        micro = {"variant": source.removeprefix("micro"), "seed": options.seed, "mix": options.mix,
                 "entities": options.entities, "world_seed": options.world_seed}
        try:
            microsynth.generate(0, **micro)
        except ValueError as error:
            raise DataError(str(error)) from None
        pieces = [("", at, min(at + 1000, options.docs), 100_000)
                  for at in range(0, options.docs, 1000)]
    elif kind == "text":
        files = find_files(paths, kind)
        limit = options.document_bytes or DOCUMENT * (len(files) < FEW_FILES)
        pieces = byte_pieces(files, max(PIECE, limit) if limit else sys.maxsize)
    elif options.hub:
        pieces, hub = plan_hub(source, options.hub)
        columns = [*CHAT, "exercise"] if source == "synth" else ["text"]
    else:
        planner = plan_jsonl if kind == "jsonl" else plan_parquet
        pieces, columns = planner(find_files(paths, kind), source, options.column)
    most = min(MAX_SHARD, max(MIN_SHARD, sum(piece[3] for piece in pieces) // 64))
    shards, room = [], 0
    for piece in pieces:
        if room <= 0:
            shards.append([])
            room = most
        shards[-1].append(piece)
        room -= piece[3]
    return [{"kind": kind, "pieces": shard, "columns": columns, "micro": micro, "hub": hub,
             "document_bytes": limit, "bytes": sum(piece[3] for piece in shard)}
            for shard in shards]
