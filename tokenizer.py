"""Tokenizers: trained, found, and applied to a document.

prepare.py trains one for a corpus and applies it; sample.py and eval_tasks.py find the one that a
checkpoint was trained with. A file tokenizer.json is all there is to it, see dataset.py.
"""
import base64
import functools
import json
from pathlib import Path

import numpy as np

from dataset import SPECIALS, DataError, make_encoding, read_tokenizer
from sources import CHAT

# GPT-4's, but with at most two digits a piece: nanochat found that better for small vocabularies.
PATTERN = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,2}+"
           r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s")
MAX_PIECE = 100_000  # characters; measured: the regex engine overflows on 1e6 blanks and a letter


def cut(text):
    """Split a huge text, at blanks where there are any: both tokenizers choke on huge pieces."""
    start = 0
    while len(text) - start > MAX_PIECE:
        blank = text.rfind(" ", start + 1, start + MAX_PIECE)
        stop = blank if blank > 0 else start + MAX_PIECE
        yield text[start:stop]
        start = stop
    yield text[start:]


def train_tokenizer(texts, vocab_size):
    """A tokenizer of vocab_size ids, specials last; of fewer where the text has no more pairs."""
    import rustbpe
    bpe = rustbpe.Tokenizer()
    bpe.train_from_iterator(texts, vocab_size - len(SPECIALS), pattern=PATTERN)
    # Two merges can spell the same bytes, and only the first would ever be used.
    ranks = dict.fromkeys(bytes(token) for token, _ in sorted(bpe.get_mergeable_ranks(),
                                                              key=lambda pair: pair[1]))
    return {"pattern": PATTERN, "specials": {s: len(ranks) + i for i, s in enumerate(SPECIALS)},
            "ranks": [base64.b64encode(token).decode() for token in ranks]}


def find_tokenizer(given, data_dir):
    """The file of a tokenizer that is given by path, folder or corpus name, and its size."""
    places = Path(given), Path(given, "tokenizer.json"), Path(data_dir, given, "tokenizer.json")
    found = next((place for place in places if place.is_file()), None)
    if not found:
        raise DataError(f"no tokenizer at {' or '.join(map(str, places))}")
    return str(found), len(read_tokenizer(found)["ranks"]) + len(SPECIALS)


@functools.lru_cache(maxsize=1)
def load_encoder(path):
    """(function from text to ids, arrays of one id for each special), once a process."""
    spec = read_tokenizer(path)
    ordinary = make_encoding(spec).encode_ordinary  # yields no special, whatever the text spells

    def encode(text):
        return np.concatenate([np.array(ordinary(piece), np.uint16) for piece in cut(text)])
    return encode, [np.array([spec["specials"][name]], np.uint16) for name in SPECIALS]


def encode_prompt(text, encode, specials, chat=True):
    """Token ids up to where the model's part begins: of a question, or of a plain text's start."""
    bos, _, im_start, im_end, *_ = specials
    if not chat:
        return np.concatenate([bos, encode(text)])
    return np.concatenate([bos, im_start, encode(f"user\n{text}"), im_end, encode("\n"), im_start,
                           encode("assistant\n")])


def encode_document(record, encode, specials):
    """Token ids of one document, uint16, markers by id only."""
    _, eos, _, im_end, think, end_think = specials
    if "text" in record:
        return np.concatenate([encode_prompt(record["text"], encode, specials, chat=False), eos])
    query, answer, trace = (record[name] for name in CHAT)
    trace = [think, encode(f"\n{trace}\n"), end_think, encode("\n")] if trace else []
    return np.concatenate([encode_prompt(query, encode, specials), *trace, encode(answer), im_end,
                           eos])


class CheckpointTokenizer:
    """The tokenizer a checkpoint was trained with, or that of another corpus or folder: data.

    vocab_size; special {name: id}; encode, from text to ids; encoding, tiktoken's, to decode. say
    hears of another corpus. Raises DataError.
    """

    def __init__(self, state, data="", say=print):
        config, n_model = state.get("config", {}), state["model_config"]["vocab_size"]
        path, self.vocab_size = find_tokenizer(data or config.get("dataset", ""),
                                               config.get("data_dir", "data"))
        if self.vocab_size > n_model:
            raise DataError(f"{path} has {self.vocab_size} ids, the model {n_model}: it is another "
                            "corpus's (--data)")
        self.encode, self._specials = load_encoder(path)
        self.encoding = make_encoding(read_tokenizer(path))
        self.special = {name: int(mark[0]) for name, mark in zip(SPECIALS, self._specials)}
        trained, meta = state.get("data", {}).get("sha256"), Path(path).with_name("meta.json")
        if trained and meta.is_file() and trained != json.loads(
                meta.read_bytes())["files"]["tokens.bin"]["sha256"]:
            say(f"{meta.parent} is not the corpus that the checkpoint was trained on")

    def prompt(self, text, chat):
        """Ids up to where the model's part begins, a list."""
        return encode_prompt(text, self.encode, self._specials, chat).tolist()
