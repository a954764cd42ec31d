"""Shards of a corpus: tokenized by workers, each to a folder of its own, then joined in order.

prepare.py plans the shards (jobs) and calls this; which files a folder holds is in dataset.py.
"""
import json
import os
import shutil
import signal
import threading
import time
from array import array
from collections import Counter
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from pathlib import Path

import numpy as np
from tqdm import tqdm

from dataset import FILES, REGIONS, DataError
from sources import CHAT, Tally, read_documents
from tokenizer import encode_document, load_encoder


def label_id(table, name):
    """The number of a label; a byte holds 256, so all names after the 255th share one."""
    return table.setdefault(name if name in table or len(table) < 255 else "other", len(table))


def tokenize_shard(job):
    """Write the part folder of one shard, whole or not at all; returns the shard's bytes."""
    began, tally, table, n_tokens, n_text_bytes = time.process_time(), Tally(), {}, 0, 0
    encode, specials = load_encoder(job["tokenizer"])
    ends, labels, entropy = array("q"), array("B"), array("f")
    temp = f"{job['folder']}.tmp{os.getpid()}"
    os.makedirs(temp, exist_ok=True)
    with open(f"{temp}/tokens.bin", "wb", buffering=1 << 20) as file:
        for record in read_documents(job, tally):
            try:
                ids = encode_document(record, encode, specials)
            except BaseException as error:
                # A panic in the Rust library is not an Exception. It costs this document only.
                if type(error).__name__ != "PanicException":
                    raise
                tally.skipped["tokenizer failed"] += 1
                continue
            file.write(ids.astype("<u2").tobytes())
            n_tokens += len(ids)
            n_text_bytes += sum(len(record.get(name, "").encode()) for name in ("text", *CHAT))
            ends.append(n_tokens)
            label = record.get("exercise") or ("text" if "text" in record else "unknown")
            labels.append(label_id(table, str(label)))
            if job["micro"]:
                entropy.extend(record["entropy"].get(region, 0.0) for region in REGIONS)
    for name, values in ("doc_ends.bin", ends), ("labels.bin", labels), ("entropy.bin", entropy):
        if len(values):
            np.array(values, FILES[name][0]).tofile(f"{temp}/{name}")
    Path(temp, "part.json").write_text(json.dumps({
        "n_docs": len(ends), "n_tokens": n_tokens, "n_text_bytes": n_text_bytes,
        "seconds": time.process_time() - began, "labels": list(table), **vars(tally)}))
    shutil.rmtree(f"{job['folder']}.hub", ignore_errors=True)
    os.rename(temp, job["folder"])
    return job["bytes"]


def start_worker():
    """Leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=lambda: (parent_process().join(), os._exit(1)), daemon=True).start()


def run_shards(jobs, workers):
    """Tokenize the shards that have no part folder yet."""
    todo = [job for job in jobs if not os.path.exists(job["folder"])]
    left, total = (sum(job["bytes"] for job in some) for some in (todo, jobs))
    with tqdm(total=total, initial=total - left, unit="B", unit_scale=True, disable=None) as bar:
        if min(workers, len(todo)) <= 1:
            for job in todo:
                bar.update(tokenize_shard(job))
            return
        # Spawned on every system: a fork would copy the locks of whoever imports this.
        pool = ProcessPoolExecutor(min(workers, len(todo)), get_context("spawn"), start_worker)
        try:
            for done in as_completed([pool.submit(tokenize_shard, job) for job in todo]):
                bar.update(done.result())
        except BrokenExecutor:
            raise DataError("a worker was killed; the same command goes on from there") from None
        finally:
            pool.shutdown(cancel_futures=True)


def append(jobs, out, keep=False):
    """Append the shards' files in order; returns sums, tally and labels.

    Each is deleted once it is safe, unless keep. A killed run finds its place again: offsets
    follow from the shards' records, which stay.
    """
    total = Counter(n_docs=0, n_tokens=0, n_text_bytes=0, seconds=0.0)
    tally, table = Tally(), {}
    for job in jobs:
        part = json.loads(Path(job["folder"], "part.json").read_bytes())
        ids = np.array([label_id(table, name) for name in part["labels"]], np.uint8)
        for name, (dtype, count, width) in FILES.items():
            source, target = Path(job["folder"], name), out / name
            if not source.exists():
                continue
            mode = "r+b" if target.exists() else "wb"
            with open(source, "rb") as read, open(target, mode) as write:
                write.seek(total[count] * width * np.dtype(dtype).itemsize)
                if name == "doc_ends.bin":
                    (np.fromfile(read, dtype) + total["n_tokens"]).tofile(write)
                elif name == "labels.bin":
                    ids[np.fromfile(read, dtype)].tofile(write)
                else:
                    shutil.copyfileobj(read, write, 1 << 20)
                write.flush()
                os.fsync(write.fileno())
            keep or source.unlink()
        total.update({key: part[key] for key in total})
        tally.skipped.update(part["skipped"])
        tally.repaired.update(part["repaired"])
        tally.first_bad = tally.first_bad or part["first_bad"]
    return dict(total), tally, list(table)
