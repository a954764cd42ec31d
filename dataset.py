"""Read a prepared corpus: its files, its splits, and rows of it for training.

    data = Dataset("data/microsynth")
    rows = Packing(data, data.split("train"), block_size=2048, seed=42)
    x, y, cu_seqlens = make_batch(*rows.read(range(32)), cu_len=256)

Reads data/<name>/, which prepare.py writes and describes; writes nothing. The files are mapped, so
the memory they take is the system's page cache, which it takes back at need.
"""
import base64
import hashlib
import json
from pathlib import Path

import numpy as np

from configurator import UserError

REGIONS = ("query", "trace", "answer", "other", "text")
SPECIALS = ("<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
# What each binary file holds: dtype, which count of meta.json, values per count.
FILES = {"tokens.bin": ("<u2", "n_tokens", 1), "doc_ends.bin": ("<i8", "n_docs", 1),
         "labels.bin": ("u1", "n_docs", 1), "entropy.bin": ("<f4", "n_docs", len(REGIONS))}
MAX_VOCAB = 1 << 16  # ids are stored as uint16
HELD_OUT = 0x5EED0FFE11D007  # keys the order that sets validation documents apart, for ever


class DataError(UserError):
    """Something the user can repair, told in one line."""


def splitmix64(values, key=0):
    """Hash integers below 2**64 to uint64, one to one.

    Unlike NumPy's generators it is the same for ever. Source: Steele, Lea and Flood 2014.
    """
    x = np.array(values, dtype=np.uint64, ndmin=1)
    x ^= np.uint64(key)
    x += np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return x


def shuffle(docs, key):
    """Document indices, uint32, in an order that the key fixes: by half a hash, then by index."""
    x = splitmix64(docs, key)
    x &= np.uint64(0xFFFFFFFF << 32)
    x |= np.asarray(docs, np.uint64)
    # measured: with the index inside the key, 10 million sort in a third of argsort's time.
    x.sort()
    return x.astype(np.uint32)


def sha256(path):
    """The hash of a file as hexadecimal text."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_tokenizer(path):
    """The content of a tokenizer.json: pattern, specials, ranks (as bytes). Raises DataError."""
    try:
        spec = json.loads(Path(path).read_bytes())
        ranks = [base64.b64decode(token, validate=True) for token in spec["ranks"]]
        specials = {name: len(ranks) + i for i, name in enumerate(SPECIALS)}
        if spec["specials"] != specials or len(set(ranks)) != len(ranks) or len(ranks) < 256:
            raise ValueError("its ids are not dense, or its specials are not ours")
        return {"pattern": spec["pattern"], "specials": specials, "ranks": ranks}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a tokenizer of this project: {error}") from None


def make_encoding(spec):
    """A tiktoken Encoding of what read_tokenizer returned."""
    import tiktoken
    return tiktoken.Encoding(
        name="prepare", pat_str=spec["pattern"], special_tokens=spec["specials"],
        mergeable_ranks={token: rank for rank, token in enumerate(spec["ranks"])},
        explicit_n_vocab=len(spec["ranks"]) + len(spec["specials"]))


# ---------------------------------------------------------------------------- files

class Dataset:
    """A prepared corpus, checked against its metadata. verify: read and hash every byte as well.

    tokens (n_tokens,) uint16; doc_ends (n_docs,) int64; label_ids (n_docs,) uint8, into labels;
    entropy (n_docs, 5) float32 in nats, columns as REGIONS, or None; specials {name: id}.
    Raises DataError.
    """

    def __init__(self, path, verify=False):
        self.path, self._order, self._encoding = Path(path), None, None
        self.meta = self._read_meta()
        self.name, self.labels = self.meta["name"], self.meta["labels"]
        self.vocab_size, self.n_docs = self.meta["vocab_size"], self.meta["n_docs"]
        self.n_tokens = self.meta["n_tokens"]
        self.tokens, self.doc_ends, self.label_ids, self.entropy = map(self._map, FILES)
        self._check_hash("tokenizer.json")
        self._tokenizer = read_tokenizer(self.path / "tokenizer.json")
        self.specials = self._tokenizer["specials"]
        self._check_documents()
        if verify:
            self._verify()

    def doc(self, i):
        """Token ids of document i, uint16."""
        return self.tokens[self.doc_ends[i - 1] if i else 0:self.doc_ends[i]]

    def encoding(self):
        """The tiktoken Encoding, made at the first call."""
        self._encoding = self._encoding or make_encoding(self._tokenizer)
        return self._encoding

    def token_bytes(self):
        """Bytes of text behind each id, (vocab_size,) int64; 0 for the specials."""
        return np.array([len(token) for token in self._tokenizer["ranks"]] + [0] * len(SPECIALS))

    def split(self, part, max_docs=0):
        """Indices of the documents of "train" or "val", int64, the same whatever a run's seed is.

        max_docs: only the first so many training documents of a fixed order; 0 for all.
        """
        if part not in ("train", "val") or max_docs < 0:
            raise DataError(f"no split {part!r} with max_docs {max_docs}")
        if self._order is None:
            self._order = shuffle(np.arange(self.n_docs), HELD_OUT)
        n_val = min(100_000, max(1, self.n_docs // 10))
        chosen = self._order[:n_val] if part == "val" else self._order[n_val:][:max_docs or None]
        return chosen.astype(np.int64)

    def _fail(self, message):
        raise DataError(f"{self.path}: {message}; prepare it again, with --overwrite")

    def _read_meta(self):
        if not self.path.is_dir():
            partial = self.path.with_name(self.path.name + ".partial").exists()
            state = "is unfinished, repeat its" if partial else "does not exist; write it with"
            raise DataError(f"{self.path} {state} python prepare.py")
        try:
            meta = json.loads((self.path / "meta.json").read_bytes())
            kinds = {"format": int, "name": str, "dtype": str, "n_docs": int, "n_tokens": int,
                     "vocab_size": int, "labels": list, "files": dict}
            wrong = [key for key, kind in kinds.items() if not isinstance(meta.get(key), kind)]
        except (OSError, ValueError, AttributeError) as error:
            self._fail(f"meta.json cannot be read ({error})")
        if wrong:
            self._fail(f"meta.json lacks {', '.join(wrong)}")
        if (meta["format"], meta["dtype"]) != (1, "uint16"):
            self._fail(f"expected format 1 and uint16, found {meta['format']} and {meta['dtype']}")
        return meta

    def _map(self, name):
        dtype, count, width = FILES[name]
        path, n = self.path / name, self.meta[count]
        if name == "entropy.bin" and name not in self.meta["files"]:
            return None
        expected = n * width * np.dtype(dtype).itemsize
        found = path.stat().st_size if path.is_file() else "no file"
        if found != expected or not expected:
            self._fail(f"{name}: expected {expected} bytes, found {found}")
        return np.memmap(path, dtype, "r", shape=(n, width) if width > 1 else (n,))

    def _check_hash(self, name):
        expected = self.meta["files"].get(name, {}).get("sha256")
        found = sha256(self.path / name) if (self.path / name).is_file() else "no file"
        if expected != found:
            self._fail(f"{name}: expected sha256 {expected}, found {found}")

    def _check_documents(self):
        ends, step = self.doc_ends, 1 << 20
        for i in range(0, self.n_docs, step):
            if (np.diff(ends[i:i + step], prepend=ends[i - 1] if i else 0) <= 0).any():
                self._fail("doc_ends.bin does not increase")
        if ends[-1] != self.n_tokens:
            self._fail(f"doc_ends.bin: expected {self.n_tokens} at its end, found {ends[-1]}")
        if (top := int(self.label_ids.max())) >= len(self.labels):
            self._fail(f"labels.bin: expected values below {len(self.labels)}, found {top}")
        if self.vocab_size != len(self._tokenizer["ranks"]) + len(SPECIALS):
            self._fail(f"vocabulary: meta.json has {self.vocab_size}, tokenizer.json has another")
        # A swapped or shifted token file shows up here, long before anybody hashes it.
        edges = [self.specials["<|bos|>"], self.specials["<|eos|>"]]
        for i in np.linspace(0, self.n_docs - 1, 100).astype(int):
            if (found := self.doc(i)[[0, -1]].tolist()) != edges:
                self._fail(f"tokens.bin: expected document {i} between {edges}, found {found}")

    def _verify(self):
        for name in self.meta["files"]:
            self._check_hash(name)
        step = 1 << 24
        top = max(int(self.tokens[i:i + step].max()) for i in range(0, self.n_tokens, step))
        if top >= self.vocab_size:
            self._fail(f"tokens.bin: expected ids below {self.vocab_size}, found {top}")


# ---------------------------------------------------------------------------- rows

class Packing:
    """Rows of block_size + 1 tokens: documents laid end to end, in a new order each epoch.

    docs: document indices. seed: of the epochs' orders; None keeps the order that is given.
    A row depends on its number alone. The last tokens of an epoch, too few for a row, are left out.
    """

    def __init__(self, dataset, docs, block_size, seed):
        self.width, self.seed, self._layouts = block_size + 1, seed, {}
        # Plain views: a memmap's own indexing is slower.
        self.tokens, self.doc_ends = np.asarray(dataset.tokens), np.asarray(dataset.doc_ends)
        # 32 bits, for at 78 million documents each 8-byte array is 0.6 GB.
        self.lengths = np.diff(self.doc_ends, prepend=0).astype(np.uint32)
        self.docs = np.asarray(docs).astype(np.uint32)
        n_tokens = int(self.lengths[self.docs].sum(dtype=np.int64))
        self.rows_per_epoch = n_tokens // self.width
        if not self.rows_per_epoch:
            raise DataError(f"{dataset.path}: {len(self.docs)} documents of {n_tokens} tokens do "
                            f"not fill one row of {self.width} (block_size {block_size} + 1)")

    def epoch(self, row):
        """The epoch, from 0, that a row belongs to."""
        return int(row) // self.rows_per_epoch

    def read(self, rows):
        """Tokens and document indices of some rows, each (len(rows), block_size + 1) int64."""
        epochs, places = np.divmod(np.asarray(rows, np.int64), self.rows_per_epoch)
        tokens = np.empty((len(epochs), self.width), np.int64)
        doc_ids = np.empty_like(tokens)
        for epoch in np.unique(epochs):
            mine = np.flatnonzero(epochs == epoch)
            tokens[mine], doc_ids[mine] = self._gather(*self._layout(int(epoch)), places[mine])
        return tokens, doc_ids

    def _layout(self, epoch):
        """Documents in the order of an epoch, and where in it each ends."""
        if epoch not in self._layouts:
            docs = self.docs
            if self.seed is not None:
                key = splitmix64(epoch, splitmix64(self.seed % 2**64)[0])[0]
                docs = shuffle(docs, key)
            if len(self._layouts) > 1:  # a batch may straddle two epochs; no more are kept
                del self._layouts[next(iter(self._layouts))]
            self._layouts[epoch] = docs, np.cumsum(self.lengths[docs], dtype=np.int64)
        return self._layouts[epoch]

    def _gather(self, docs, ends, places):
        """Tokens and document indices of the rows at some places of one epoch."""
        starts = places * self.width
        first = np.searchsorted(ends, starts, side="right")
        last = np.searchsorted(ends, starts + self.width - 1, side="right")
        # One piece for each document that a row touches; slot is its place in the epoch.
        count = last - first + 1
        row = np.repeat(np.arange(len(places)), count)
        slot = np.arange(len(row)) + np.repeat(first - np.cumsum(count) + count, count)
        doc = docs[slot]
        begin = np.maximum(ends[slot] - self.lengths[doc], starts[row])
        length = np.minimum(ends[slot], starts[row] + self.width) - begin
        # All tokens of a piece lie equally far from their place in the epoch.
        shift = np.repeat(self.doc_ends[doc] - ends[slot], length).reshape(-1, self.width)
        where = starts[:, None] + np.arange(self.width) + shift  # (R, T + 1)
        return self.tokens[where], np.repeat(doc, length).reshape(where.shape)


def make_batch(tokens, doc_ids, cu_len):
    """Inputs, targets and document boundaries of rows from Packing.read.

    tokens, doc_ids: (B, T + 1) int64. Returns x and y, (B, T) int64, y -1 where it is not scored;
    and cu_seqlens, int32: where documents and rows start in the B * T inputs, then B * T up to a
    multiple of cu_len, plus one more, so that nearly all layouts have one shape.
    """
    x, y = np.ascontiguousarray(tokens[:, :-1]), tokens[:, 1:].copy()
    fresh = doc_ids[:, 1:] != doc_ids[:, :-1]
    # The last token of a document must not be trained to predict the first token of the next.
    y[fresh] = -1
    begins = np.ones(x.shape, bool)
    begins[:, 1:] = fresh[:, :-1]
    begins = np.flatnonzero(begins)
    cu_seqlens = np.full(-(-len(begins) // cu_len) * cu_len + 1, x.size, np.int32)
    cu_seqlens[:len(begins)] = begins
    return x, y, cu_seqlens


def token_regions(tokens, specials):
    """Region of each token of one document, uint8 indices into REGIONS.

    The header of a turn counts to its turn, and so does the line end after it.
    """
    query, trace, answer, other, text = range(len(REGIONS))
    turn = np.cumsum(tokens == specials["<|im_start|>"])
    inside = np.cumsum(tokens == specials["<think>"]) > np.cumsum(tokens == specials["</think>"])
    regions = np.where(turn > 1, np.where(inside, trace, answer), query if turn.any() else text)
    regions[np.isin(tokens, list(specials.values()))] = other
    return regions.astype(np.uint8)
