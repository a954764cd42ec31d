"""Turn text into a corpus, data/<name>/: python prepare.py SOURCE [PATHS] [--key=value ...]

    python prepare.py microsynth                             # embedded corpus; also microweb
    python prepare.py text 'corpus/**/*.txt' --name=mine     # a document a file; under 20, cut
    python prepare.py jsonl a.jsonl b.jsonl --column=body    # a text column, or SYNTH's columns
    python prepare.py parquet folder/ --tokenizer=mine       # with the tokenizer of another corpus
    python prepare.py synth 'SYNTH/*.parquet'                # PleIAs/SYNTH; also fineweb-edu
    python prepare.py synth --hub                            # fetched, a file a worker at a time
    python prepare.py synth 'SYNTH/*.parquet' --part=2/8     # one of 8 machines' share, then
    python prepare.py merge data/synth.part*of8 --name=synth # what one machine would have written

Writes tokens.bin (uint16, each document BOS ... EOS), doc_ends.bin (int64), labels.bin (uint8, the
exercise), entropy.bin (float32, embedded corpora only), tokenizer.json and, last, meta.json.
The bytes depend on the documents, the options and the order of the files' full paths alone: not on
workers, on the order of the arguments, or on the names of the folders above.
A killed run leaves data/<name>.partial, and the same command goes on from there.
"""
import itertools
import json
import os
import random
import re
import shutil
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import configurator
import microsynth
from dataset import FILES, MAX_VOCAB, SPECIALS, DataError, sha256, splitmix64
from dataset import REGIONS, Dataset, Packing, make_batch, token_regions  # noqa: F401  re-exported
from shards import append, run_shards
from sources import CHAT, HUB, SOURCES, Tally, plan, read_documents
from tokenizer import cut, find_tokenizer, train_tokenizer
from tokenizer import encode_document, load_encoder  # noqa: F401  re-exported


@dataclass(frozen=True)
class Options:
    """Options:"""
    name: str = ""  # folder to write in data_dir; empty: the source's name
    data_dir: str = "data"  # where corpora are kept
    overwrite: bool = False  # replace a corpus of that name
    vocab_size: int = 0  # token ids with the six specials; 0: 1024 if embedded, else 16384
    tokenizer: str = ""  # corpus name, folder or tokenizer.json to take it from; empty: train one
    sample_bytes: int = 0  # text it is trained on; 0: 1e6 if embedded, else 2e8
    column: str = ""  # text column of jsonl and parquet; empty: SYNTH's columns or "text"
    document_bytes: int = 0  # text: cut files at blank lines to these; 0: 4096 if under 20 files
    hub: str = ""  # fetch synth or fineweb-edu, this revision of it; bare: main, its newest
    part: str = ""  # i/n: the i-th of n shares, to be merged
    workers: int = 0  # processes; 0: one a core
    docs: int = 150_000  # documents of an embedded corpus
    entities: int = 0  # people in its world, so what there is to store; 0: as in microsynth.py
    mix: str = "default"  # shares of its exercises, see microsynth.py
    world_seed: int = 0  # which world
    seed: int = 0  # which documents, and which of them train the tokenizer


def write_whole(path, data):
    """Write bytes so that path holds either its old content or all of the new."""
    temp = f"{path}.tmp{os.getpid()}"
    try:
        with open(temp, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
    finally:
        Path(temp).unlink(missing_ok=True)


# ---------------------------------------------------------------------------- tokenizer

def sample_texts(jobs, sample_bytes, seed):
    """Yield texts to train the tokenizer on: a seeded share of those in some seeded shards."""
    chosen, size = [], 0
    for i in np.argsort(splitmix64(np.arange(len(jobs)), seed)):
        # A few shards will do: reading terabytes for a small sample would take hours.
        if len(chosen) < 8 or size < 4 * sample_bytes:
            chosen.append(int(i))
            size += jobs[i]["bytes"]
    for i in chosen:
        draw, shard = random.Random(f"{seed} {i}"), read_documents(jobs[i], Tally())
        texts = (record[name] for record in shard for name in ("text", *CHAT) if record.get(name))
        for n, text in enumerate(itertools.chain.from_iterable(map(cut, texts))):
            if n == 0 or draw.random() * size < sample_bytes:
                yield text


def place_tokenizer(path, jobs, options):
    """Write tokenizer.json, another corpus's or a trained one, unless a killed run has done so."""
    if path.exists():
        return
    if options.tokenizer:
        return write_whole(path, Path(options.tokenizer).read_bytes())
    sample_mb = min(options.sample_bytes, sum(job["bytes"] for job in jobs)) / 1e6
    print(f"training a tokenizer of {options.vocab_size:,} ids on up to {sample_mb:,.1f} MB")
    texts = sample_texts(jobs, options.sample_bytes, options.seed)
    write_whole(path, json.dumps(train_tokenizer(texts, options.vocab_size), indent=0).encode())


# ---------------------------------------------------------------------------- build

def resolve(source, paths, options):
    """Options with the source's defaults filled in, and the folder. Refuses what cannot be."""
    if source not in SOURCES:
        raise DataError(f"no source {source!r}; there are {', '.join(SOURCES)}")
    micro, least = SOURCES[source] == "micro", 256 + len(SPECIALS)
    # What is asked for and would not be done is a mistake.
    idle = ("column",) if micro else ("docs", "entities", "mix", "world_seed")
    idle += ("column",) * (source in ("text", "synth") or bool(options.hub))
    idle += ("document_bytes",) * (source != "text") + ("hub",) * (source not in HUB)
    idle += ("vocab_size", "sample_bytes") * bool(options.tokenizer)
    for name in idle:
        if getattr(options, name) != getattr(Options, name):
            raise DataError(f"--{name} has no effect on this source, or with this --tokenizer")
    if (micro or options.hub) and paths:
        raise DataError(f"{source} is made up or fetched and takes no paths, not {paths[0]}")
    path, vocab_size = "", options.vocab_size or (1024 if micro else 16384)
    if options.tokenizer:
        path, vocab_size = find_tokenizer(options.tokenizer, options.data_dir)
    options = replace(options, name=options.name or source, tokenizer=path, vocab_size=vocab_size,
                      docs=options.docs if micro else 0,
                      entities=(options.entities or microsynth.ENTITIES) if micro else 0,
                      sample_bytes=options.sample_bytes or (1_000_000 if micro else 200_000_000))
    if not least <= vocab_size <= MAX_VOCAB:
        raise DataError(f"vocab_size must be {least} to {MAX_VOCAB}, not {vocab_size}: bytes and "
                        "specials at least, and what fits in uint16")
    if options.document_bytes and options.document_bytes < 256:
        raise DataError(f"document_bytes must be 0 or 256 at least, not {options.document_bytes}")
    if min(options.docs, options.workers, options.seed) < 0 or not 0 < options.sample_bytes <= 2e9:
        raise DataError("docs, workers and seed cannot be negative, and sample_bytes must be 1 to "
                        "2e9, as pairs are counted in 32 bits")
    share = re.fullmatch("([1-9][0-9]*)/([1-9][0-9]*)", options.part or "1/1")
    if not share or int(share[1]) > int(share[2]):
        raise DataError(f"part must be 1/n to n/n, not {options.part!r}")
    suffix, mark = options.part and f".part{share[1]}of{share[2]}", "meta.json"
    folder = place(replace(options, name=options.name + suffix), "plan.json" if suffix else mark)
    return options, folder, slice(int(share[1]) - 1, None, int(share[2]))


def place(options, mark="meta.json"):
    """The folder to write. Refuses one that exists, unless it is to be replaced and has a mark."""
    if not re.fullmatch(r"[^./\\][^/\\]*(?<!\.partial)", options.name):
        raise DataError(f"name must be a plain folder name, not {options.name!r}")
    folder = Path(options.data_dir, options.name)
    if folder.exists() and not (options.overwrite and (folder / mark).exists()):
        raise DataError(f"{folder} exists: give another --name, or --overwrite to replace a corpus")
    return folder


def open_work(work, source, jobs, mine, options):
    """Make the .partial folder, or keep what a killed run on the same input has left."""
    # measured: 3.5 to 4.5 bytes of English a token, which takes two; what the hub has is packed.
    check_space(work, sum(job["bytes"] for job in jobs[mine]) * (0.9 if options.hub else 0.6))
    stats = [os.stat(piece[0]) for job in jobs for piece in job["pieces"]
             if job["kind"] != "micro" and not job["hub"]]
    keep = asdict(replace(options, workers=0, overwrite=False, data_dir=""))
    state = json.dumps({"source": source, "options": keep, "jobs": jobs,
                        "stats": [(s.st_size, s.st_mtime_ns) for s in stats]}).encode()
    if work.exists() and not ((work / "plan.json").exists()
                              and (work / "plan.json").read_bytes() == state):
        print(f"{work}: was left by another command, starting anew")
        shutil.rmtree(work)
    (work / "out").mkdir(parents=True, exist_ok=True)
    (work / "parts").mkdir(exist_ok=True)
    for stray in work.glob("**/*.tmp*"):  # of a run that was killed while it wrote
        shutil.rmtree(stray) if stray.is_dir() else stray.unlink(missing_ok=True)
    write_whole(work / "plan.json", state)


def check_space(folder, need):
    """Raise DataError where fewer bytes are free than will be written."""
    disk = next(parent for parent in folder.absolute().parents if parent.exists())
    if need > (free := shutil.disk_usage(disk).free):
        raise DataError(f"about {need / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free in {disk}")


def build(source, paths=(), name="", data_dir="data", **options):
    """Prepare a corpus, or a part; it appears whole as the folder that is returned.

    options: as in Options. Raises DataError. After a kill, the same call goes on.
    """
    began = time.perf_counter()
    options = Options(name=name, data_dir=str(data_dir), **options)
    options, folder, mine = resolve(source, paths, options)
    work = folder.with_name(folder.name + ".partial")
    if options.hub == "main" and (work / "plan.json").exists():  # it may have moved on since a kill
        kept = json.loads((work / "plan.json").read_bytes())["options"]["hub"]
        options = replace(options, hub=kept or "main")
    jobs = plan(source, paths, options)
    if jobs and jobs[0]["document_bytes"] != options.document_bytes:
        options = replace(options, document_bytes=jobs[0]["document_bytes"])
        print(f"so few text files are cut, mostly at blank lines, into documents of at most "
              f"{options.document_bytes:,} bytes (--document_bytes)")
    if options.hub:
        options = replace(options, hub=jobs[0]["hub"][1])
    open_work(work, source, jobs, mine, options)
    tokenizer = work / "out" / "tokenizer.json"
    for i, job in enumerate(jobs):
        job |= {"folder": str(work / "parts" / f"{i:06d}"), "tokenizer": str(tokenizer)}
    place_tokenizer(tokenizer, jobs, options)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    run_shards(jobs[mine], options.workers or cores)
    if not options.part:
        return finish(source, jobs, options, folder, began)
    for stray in work.glob("parts/*.hub"):  # read for the tokenizer only
        shutil.rmtree(stray)
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(work, folder)
    every = re.sub("[0-9]+of", "*of", str(folder.with_suffix("")) + folder.suffix)
    print(f"part        {options.part}, {len(jobs[mine])} of {len(jobs)} shards\n"
          f"folder      {folder}\n"
          f"next        python prepare.py merge {every} --name={options.name}")
    return folder


def merge(paths, options):
    """Join the folders that --part wrote, wherever they were written, to one corpus."""
    began, folder = time.perf_counter(), place(options)
    plans, tokenizers = [], []
    for path in map(Path, paths):
        try:
            plans.append(json.loads((path / "plan.json").read_bytes()))
            tokenizers.append((path / "out" / "tokenizer.json").read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"{path} is no part of a corpus: {error}") from None
        for each in plans[-1], plans[-1]["options"]:
            each |= dict.fromkeys({"stats", "part", "tokenizer", "name"} & set(each), "")
        for job in plans[-1]["jobs"]:  # the files may lie elsewhere on another machine
            job["pieces"] = [[Path(name).name, *rest] for name, *rest in job["pieces"]]
        if plans[-1] != plans[0] or tokenizers[-1] != tokenizers[0]:
            raise DataError(f"{path} and {paths[0]} differ in input, options or tokenizer")
    if not plans:
        raise DataError("merge needs the folders that --part wrote")
    jobs = plans[0]["jobs"]
    for i, job in enumerate(jobs):
        job["folder"] = next((f"{path}/parts/{i:06d}" for path in paths
                              if Path(path, "parts", f"{i:06d}").exists()), "")
    if missing := sum(not job["folder"] for job in jobs):
        raise DataError(f"{missing} of {len(jobs)} shards are in none of these folders: a part is "
                        "missing")
    check_space(folder, sum(file.stat().st_size for path in paths for file in
                            Path(path).glob("parts/*/*.bin")))
    out = folder.with_name(folder.name + ".partial") / "out"
    shutil.rmtree(out.parent, ignore_errors=True)
    out.mkdir(parents=True)
    write_whole(out / "tokenizer.json", tokenizers[0])
    options = Options(**plans[0]["options"])
    return finish(plans[0]["source"], jobs, options, folder, began, keep=True)


def finish(source, jobs, options, folder, began, keep=False):
    """Join the shards, write meta.json and put the corpus in its place."""
    work = folder.with_name(folder.name + ".partial")
    out, tokenizer = work / "out", work / "out" / "tokenizer.json"
    total, tally, labels = append(jobs, out, keep)
    if total["n_docs"] < 2:
        shutil.rmtree(work)
        raise DataError(f"{total['n_docs']} documents, but one is held out and one must be left "
                        f"to train on; skipped: {dict(tally.skipped) or 'none'}")
    seconds = total.pop("seconds")
    meta = {"format": 1, "name": folder.name, "source": source, "dtype": "uint16", **total,
            "vocab_size": find_tokenizer(tokenizer, "")[1], "labels": labels,
            "skipped": dict(sorted(tally.skipped.items())),
            "repaired": dict(sorted((+tally.repaired).items())),
            "files": {name: {"bytes": (out / name).stat().st_size, "sha256": sha256(out / name)}
                      for name in sorted([*FILES, tokenizer.name]) if (out / name).exists()},
            "options": {key: value for key, value in asdict(options).items() if key not in
                        ("name", "data_dir", "overwrite", "tokenizer", "workers", "part")}}
    write_whole(out / "meta.json", json.dumps(meta, indent=1).encode())
    if folder.exists():
        os.replace(folder, work / "old")
    os.replace(out, folder)
    shutil.rmtree(work)
    report(folder, meta, tally, time.perf_counter() - began, seconds)
    return folder


def report(folder, meta, tally, seconds, core_seconds):
    """Say what came out, and what to do next."""
    def listed(counts):
        return ", ".join(f"{n:,} {reason}" for reason, n in counts.items()) or "none"
    docs, tokens, size = meta["n_docs"], meta["n_tokens"], meta["n_text_bytes"]
    asked, vocab_size = meta["options"]["vocab_size"], meta["vocab_size"]
    print(f"documents   {docs:,}; skipped: {listed(tally.skipped)}; "
          f"repaired: {listed(+tally.repaired)}")
    path, offset = tally.first_bad or ("", 0)
    if os.path.exists(path):  # not on the machine that merges
        with open(path, "rb") as file:
            line = 1 + sum(1 for _ in iter(lambda: file.tell() < offset and file.readline(), False))
        print(f"            the first broken line is {path}:{line}")
    print(f"tokens      {tokens:,}; {tokens / docs:.1f} a doc; {size / tokens:.2f} bytes a token")
    print(f"vocabulary  {vocab_size:,}" + f" (of {asked:,} asked)" * (asked != vocab_size))
    print(f"time        {seconds:.1f} s; {size / 1e6 / core_seconds:.2f} MB/s per core")
    print(f"folder      {folder}\nnext        python train.py config/micro_san.py "
          f"--dataset={meta['name']} --vocab_size={vocab_size}")


def main(argv):
    if not argv or {"-h", "--help"} & set(argv):
        print(__doc__, configurator.describe(Options), sep="\n")
        return
    words, flags = configurator.split(Options, argv, bare={"hub": "main"})
    try:
        options, _ = configurator.load(Options, flags)
        if not words:
            raise DataError(f"name a source: {', '.join(SOURCES)}")
        if words[0] == "merge":
            idle = {flag.split("=")[0] for flag in flags} - {"--name", "--data_dir", "--overwrite"}
            if idle or not options.name:
                raise DataError(f"merge needs --name, and {', '.join(idle) or 'no more'} has no "
                                "effect on it")
            return merge(words[1:], options)
        build(words[0], words[1:], **asdict(options))
    except (ValueError, OSError) as error:
        configurator.fail(error)
    except KeyboardInterrupt:
        print("prepare.py: stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main(sys.argv[1:])
