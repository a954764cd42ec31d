"""Text from a checkpoint, token by token.

    python sample.py out/micro_web/ckpt.pt --prompt="Records speak of" --temperature=0.8
    python sample.py out/micro_san/ckpt.pt --chat --prompt="Where did Bafula live?" --top_k=1

Reads the checkpoint and the tokenizer of its corpus, writes nothing. --chat wraps the prompt as the
corpus's user turns are, so that the model answers it. Sample i depends on seed + i and the options
alone. Text goes to stdout, everything else to stderr.
"""

import codecs
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

import checkpoint
from attention import attend
from configurator import ConfigError, UserError, fail, load, split
from dataset import DataError
from tokenizer import CheckpointTokenizer


@dataclass(frozen=True)
class Options:
    """Options of sample.py: python sample.py CHECKPOINT [--key=value ...]"""

    prompt: str = ""  # empty: from the start of a document
    chat: bool = False  # the prompt is a question; the model's turn ends at <|im_end|>
    num_samples: int = 1  # made together; one alone is shown as it comes
    max_new_tokens: int = 500
    temperature: float = 1.0  # 0: always the likeliest token
    top_k: int = 0  # only the so many likeliest; 0: all
    top_p: float = 1.0  # only the likeliest that together have this probability
    seed: int = 0
    crop: bool = False  # of a prompt that leaves no room, keep the end
    data: str = ""  # corpus or folder whose tokenizer to use; empty: the checkpoint's

    def __post_init__(self):
        if min(self.num_samples, self.max_new_tokens) < 1 or not 0 < self.top_p <= 1:
            raise ConfigError("num_samples and max_new_tokens are 1 at least, top_p above 0 to 1")
        if min(self.temperature, self.top_k, self.seed) < 0 or self.chat > bool(self.prompt):
            raise ConfigError("no negative temperature, top_k or seed; and --chat needs a --prompt")


def say(text):
    print(f"sample.py: {text}", file=sys.stderr)


class Cache:
    """The keys and values of one layer so far. As the layout of attend() it adds to them."""

    def __init__(self, room):
        self.room, self.length, self.store = room, 0, None

    def __call__(self, q, k, v):
        B, T, K, D = k.shape
        if self.store is None:
            self.store = k.new_empty(2, B, self.room, K, D)
        past, self.length = self.length, self.length + T
        self.store[:, :, past : self.length] = torch.stack((k, v))
        mask = torch.ones(T, self.length, dtype=torch.bool, device=q.device).tril(past)
        return attend(q, *self.store[:, :, : self.length], mask)


def next_logits(model, idx, caches):
    """Logits (B, V), float32, after the tokens idx (B, T), which go on from those in the caches."""
    past, T = caches[0].length, idx.shape[1]
    x = model.embed(idx)
    for block, cache in zip(model.blocks, caches):
        x = block(x, model.cos[past : past + T], model.sin[past : past + T], cache)
    return F.linear(model.norm_f(x)[:, -1], model.wte.weight.to(x.dtype)).float()


def choose(logits, generators, temperature, top_k, top_p):
    """A token for each row of logits (B, V): (B,) int64."""
    if temperature == 0:
        return logits.argmax(-1)
    logits, order = logits.cpu().sort(-1, descending=True)  # a CPU draws the same on any machine
    p = ((logits - logits[:, :1]) / temperature).softmax(-1)
    p[:, top_k or p.shape[-1] :] = 0
    p[p.cumsum(-1) - p >= top_p * p.sum(-1, keepdim=True)] = 0
    drawn = torch.stack([torch.multinomial(row, 1, generator=g) for row, g in zip(p, generators)])
    return order.gather(-1, drawn)[:, 0]


@torch.inference_mode()
def generate(model, prompt, vocab_size, stops=(), num_samples=1, max_new_tokens=500,
             temperature=0.0, top_k=0, top_p=1.0, seed=0):  # fmt: skip
    """Yield the next token of every sample as a list, -1 where a stop token has ended one.

    prompt: ids, at most block_size. Ends when all samples have, or with the positions.
    """
    room = model.cfg.block_size
    if not 1 <= len(prompt) <= room:
        raise ValueError(f"a prompt of {len(prompt)} tokens does not fit block_size {room}")
    device = model.wte.weight.device
    generators = [torch.Generator().manual_seed(seed + i) for i in range(num_samples)]
    idx = torch.tensor([prompt] * num_samples, device=device)
    caches = [Cache(min(room, len(prompt) + max_new_tokens)) for _ in model.blocks]
    alive = torch.ones(num_samples, dtype=torch.bool)
    for _ in range(min(max_new_tokens, room - len(prompt) + 1)):
        logits = next_logits(model, idx, caches)
        logits[:, vocab_size:] = -torch.inf  # ids that no text has, only the model
        new = choose(logits, generators, temperature, top_k, top_p).cpu()
        alive &= ~torch.isin(new, torch.tensor(stops))
        yield torch.where(alive, new, -1).tolist()
        if not alive.any():
            return
        idx = new[:, None].to(device)


def show(steps, token_bytes, openings):
    """Print what generate() yields, a single sample as it comes; returns the samples' lengths."""
    # A character may be spread over tokens.
    decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in openings]
    alone, made = len(openings) == 1, [0] * len(openings)
    print(openings[0] if alone else "", end="", flush=True)
    for ids in steps:
        for i, token in enumerate(ids):
            if token >= 0:
                made[i] += 1
                openings[i] += (piece := decoders[i].decode(token_bytes(token)))
                print(piece if alone else "", end="", flush=True)
    for i, text in enumerate(openings):
        tail = decoders[i].decode(b"", final=True)
        print(tail if alone else f"--- sample {i + 1}\n{text}{tail}")
    return made


def open_checkpoint(cls, argv, say):
    """(options, path, checkpoint, model, tokenizer) of a command line that names one checkpoint."""
    paths, flags = split(cls, argv)
    options, paths = load(cls, flags)[0], [Path(p) for p in paths]
    if len(paths) != 1:
        raise ConfigError("give one checkpoint, as out/micro_san/ckpt.pt; --help lists options")
    path = paths[0] / "ckpt.pt" if paths[0].is_dir() else paths[0]
    state = checkpoint.read(path)
    model = checkpoint.build_model(state, "cuda" if torch.cuda.is_available() else "cpu")
    return options, path, state, model, CheckpointTokenizer(state, options.data, say)


def main(argv):
    o, _, _, model, tokenizer = open_checkpoint(Options, argv, say)
    room, began = model.cfg.block_size, time.perf_counter()
    sys.stdout.reconfigure(errors="replace")  # a terminal may not know all characters
    prompt = tokenizer.prompt(o.prompt, o.chat)
    if (length := len(prompt)) > room:
        if not o.crop:
            raise DataError(f"the prompt has {length} tokens, block_size is {room} (--crop)")
        prompt = prompt[min(o.max_new_tokens, room // 2) - room :]
        say(f"the prompt's first {length - len(prompt)} of {length} tokens are cut off")
    stops = ["<|eos|>", "<|im_end|>"] if o.chat else ["<|eos|>"]
    steps = generate(model, prompt, tokenizer.vocab_size, [tokenizer.special[s] for s in stops],
                     o.num_samples, o.max_new_tokens, o.temperature, o.top_k, o.top_p, o.seed)
    made = show(steps, tokenizer.encoding.decode_single_token_bytes,
                ["" if o.chat else o.prompt] * o.num_samples)
    if max(made) == room - len(prompt) + 1 < o.max_new_tokens:
        say(f"stopped at block_size {room}: the model knows no position beyond")
    say(f"{sum(made)} tokens, {sum(made) / (time.perf_counter() - began):.1f} tokens/s")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (UserError, OSError) as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(130)
