"""Instruments: what one checkpoint shows, with intervals. Reads, writes and prints nothing.

Weights alone give spectra and gates. On held-out tokens: loss, bits per byte, the rank of the
stream, loss by region and exercise against the generator's floor, probes with known answers. Runs
on one corpus are measured on the same tokens and resampled together (Corpus), so that every
difference is paired. Source: arXiv:2607.18363, section 5. analyze.py uses it, tests check it.
"""

import itertools
import math
import re

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

import checkpoint
import dataset
import microsynth
from tokenizer import encode_document, load_encoder

DISTANCES = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89)  # sentences between a fact and its question


# -----------------------------------------------------------------------------
# Weights


def effective_rank(s):
    """exp of the entropy of the singular values (..., n) normalised to sum 1; 0 for a zero matrix.
    Source: section 5."""
    p = s / s.sum(-1, keepdim=True).clamp(min=1e-300)
    rank = torch.special.entr(p).sum(-1).exp()
    return torch.where(s.sum(-1) > 0, rank, 0)


def singular_values(w):
    """Singular values of matrices (L, m, n), largest first, (L, min(m, n)) float64.

    From the smaller Gram matrix: measured: half the time of svdvals. It is good to 1e-8 of the
    largest value, so what lies below 1e-7 of it is rounding and becomes 0.
    """
    w = w.double()  # bfloat16 has neither decomposition
    gram = w.mT @ w if w.shape[1] > w.shape[2] else w @ w.mT
    s = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flip(-1)
    return torch.where(s > 1e-7 * s[:, :1], s, 0)


def spectra(weights):
    """Singular values of every block matrix, in float64, summed up by layer.

    Returns {matrix: {"layer", "stable_rank", "effective_rank", "top": lists}} and {name: reason} of
    what could not be used.
    """
    stacks, broken = {}, {}
    short = {"c_q": "q", "c_k": "k", "c_v": "v", "c_gate": "gate", "c_up": "up"}
    for name, w in weights.items():
        match = re.fullmatch(r"blocks\.(\d+)\.(?:(attn|ffn)\.)?(\w+)\.weight", name)
        if not match or "norm" in name:
            continue
        layer, part, kind = match.groups()
        kind = {"attn": "o", "ffn": "down"}.get(part) if kind == "c_proj" else short.get(kind, kind)
        if w.ndim != 2 or min(w.shape) < 2:
            broken[name] = f"shape {tuple(w.shape)} is not a matrix, skipped"
        elif not torch.isfinite(w).all():
            broken[name] = "holds NaN or infinity, skipped"
        else:
            stacks.setdefault((kind, w.shape), []).append((int(layer), w))
    found = {}
    for (kind, _), stack in stacks.items():
        s = singular_values(torch.stack([w for _, w in stack]))  # (L, n)
        stable = s.square().sum(-1) / s[:, 0].square().clamp(min=1e-300)
        row = found.setdefault(kind, {k: [] for k in
                                      ("layer", "stable_rank", "effective_rank", "top")})
        row["layer"] += [layer for layer, _ in stack]
        for key, value in zip(list(row)[1:], (stable, effective_rank(s), s[:, 0])):
            row[key] += value.tolist()
    return found, broken


def gates(run):
    """Scale of each sublayer, by layer now and over time: {"attn" or "ffn": ...}, or None."""
    if run.cfg.residual not in ("gated", "rezero"):
        return None
    parts = ("attn", "ffn") if run.cfg.use_ffn else ("attn",)
    scale = torch.sigmoid if run.cfg.residual == "gated" else torch.clone
    weights = run.state["model"]
    now = {part: [scale(weights[f"blocks.{i}.gate_{n}"].float()).item()
                  for i in range(run.cfg.n_layer)] for n, part in enumerate(parts, 1)}
    events = [e for e in run.events if e.get("gates")]
    events = events[:: max(1, len(events) // 200)]  # a picture is no wider
    log = {part: [e["gates"][n :: len(parts)] for e in events] for n, part in enumerate(parts)}
    return {"now": now, "log": log, "log_tokens": [e["tokens"] for e in events]}


# -----------------------------------------------------------------------------
# Held-out tokens


def pack_whole(docs, width):
    """Whole documents, in order, into rows of width tokens: tokens and document numbers (rows,
    width), -1 where a row stays empty."""
    starts, row, used = [], 0, 0
    for doc in docs:
        if used + len(doc) > width:
            row, used = row + 1, 0
        starts.append(row * width + used)
        used += len(doc)
    tokens, doc_ids = np.zeros((row + 1) * width, np.int64), np.full((row + 1) * width, -1)
    for i, (doc, start) in enumerate(zip(docs, starts)):
        tokens[start : start + len(doc)], doc_ids[start : start + len(doc)] = doc, i
    return tokens.reshape(-1, width), doc_ids.reshape(-1, width)


class Sample:
    """Rows of T + 1 tokens and their scored positions, flat: targets, and the row and document of
    each. Positions of a document stay in order, so flat arrays of whole documents line up."""

    def __init__(self, tokens, doc_ids):
        self.tokens, self.doc_ids = tokens, doc_ids
        self.scored = (doc_ids[:, 1:] == doc_ids[:, :-1]) & (doc_ids[:, 1:] >= 0)  # (rows, T)
        self.targets, self.docs = tokens[:, 1:][self.scored], doc_ids[:, 1:][self.scored]
        self.rows = np.nonzero(self.scored)[0]

    def batches(self, model, device):
        """Inputs, targets and document bounds on device, in batches that fit."""
        T = self.tokens.shape[1] - 1
        size = max(1, 2**25 // (T * model.cfg.vocab_size))  # logits of at most 128 MB, or one row
        for i in range(0, len(self.tokens), size):
            rows = slice(i, i + size)
            x, y, cu = dataset.make_batch(self.tokens[rows], self.doc_ids[rows], 1)
            y[~self.scored[rows]] = -1
            yield (torch.from_numpy(a).to(device) for a in (x, y, cu))


@torch.no_grad()
def losses(model, sample, device, label):
    """-log p in nats of each scored target, flat, float64."""
    found = []
    bar = tqdm(total=len(sample.tokens), desc=label, unit="row", leave=False, disable=None)
    for x, y, cu in sample.batches(model, device):
        logits = model(x, cu).flatten(0, 1).float()  # (B * T, V)
        y = y.flatten()
        nll = F.cross_entropy(logits, y, ignore_index=-1, reduction="none")
        found.append(nll[y >= 0].double().cpu().numpy())
        bar.update(len(x))
    bar.close()
    return np.concatenate(found)


@torch.no_grad()
def representation_rank(model, sample, device, least=16384):
    """Effective rank of the centred stream after the embedding and after each block, on the first
    rows with at least `least` positions, or 8 for each dimension. Source: section 5."""
    C, states = model.cfg.n_embd, []
    gram = torch.zeros(model.cfg.n_layer + 1, C, C, dtype=torch.float64, device=device)
    total, count = gram.new_zeros(len(gram), C), 0
    first = model.blocks[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
    hooks = [first] + [b.register_forward_hook(lambda _, __, out: states.append(out))
                       for b in model.blocks]
    for x, _, cu in sample.batches(model, device):
        model.hidden(x, cu)
        for i, h in enumerate(states):
            h = h.flatten(0, 1).double()  # (B * T, C)
            gram[i] += h.T @ h
            total[i] += h.sum(0)
        states.clear()
        count += x.numel()
        if count >= max(least, 8 * C):
            break
    for hook in hooks:
        hook.remove()
    centred = gram - total[:, :, None] * total[:, None] / count
    ranks = effective_rank(torch.linalg.eigvalsh(centred).clamp(min=0).sqrt()).tolist()
    low = 1 + int(np.argmin(ranks[1:]))
    return {"by_layer": ranks, "lowest_layer": low, "lowest": ranks[low], "width": C}


class HeldOut:
    """What all runs on one corpus are measured on: the rows that training evaluates on, and whole
    documents, which alone have regions that no row's edge cuts. Cells are region x exercise."""

    def __init__(self, data, block_size, n_tokens):
        self.data, width = data, block_size + 1
        pool = data.split("val")
        packing = dataset.Packing(data, pool, block_size, None)
        n_rows = min(max(1, n_tokens[0] // block_size), packing.rows_per_epoch)
        self.rows = Sample(*packing.read(np.arange(n_rows)))
        lengths = data.doc_ends[pool] - np.where(pool > 0, data.doc_ends[pool - 1], 0)
        within = np.cumsum(lengths) <= max(n_tokens[1], width)
        self.ids = pool[within & (lengths <= width)]
        self.too_long = int((within & (lengths > width)).sum())
        self.docs = None
        if not len(self.ids):
            return  # what needs whole documents is left out
        docs = [data.doc(i) for i in self.ids]
        self.docs = Sample(*pack_whole(docs, width))
        regions = np.concatenate([dataset.token_regions(d, data.specials)[1:] for d in docs])
        self.labels = np.asarray(data.label_ids[self.ids], np.int64)  # (documents,)
        self.shape = len(data.labels), len(dataset.REGIONS)
        self.cell = self.labels[self.docs.docs] * self.shape[1] + regions
        self.n = self.by_document(np.ones(len(regions)))
        self.floor = None
        if data.entropy is not None:
            self.floor = np.zeros((len(self.ids), *self.shape))
            self.floor[np.arange(len(self.ids)), self.labels] = data.entropy[self.ids]
            self.floor = self.floor.reshape(len(self.ids), -1)

    def by_document(self, values):
        """Sums of flat values over document and cell, (documents, cells) float64."""
        cells = math.prod(self.shape)
        where = self.docs.docs * cells + self.cell
        return np.bincount(where, values, len(self.ids) * cells).reshape(-1, cells)

    def views(self):
        """(region, exercise, cells) of every part that has tokens; "all" comes first."""
        names = [(r, e) for e in self.data.labels for r in dataset.REGIONS]
        full = self.n.sum(0) > 0
        for region, exercise in itertools.product(("all", *dataset.REGIONS),
                                                  ("all", *self.data.labels)):
            cells = [i for i, (r, e) in enumerate(names) if full[i]
                     and region in ("all", r) and exercise in ("all", e)]
            if cells:
                yield region, exercise, cells


# -----------------------------------------------------------------------------
# Intervals


def resample(table, n, seed=0):
    """Column totals of n bootstrap samples of the rows (documents) of table: (n, columns)."""
    table = np.asarray(table, np.float64)
    rng, units = np.random.default_rng(seed), len(table)
    totals, step = np.empty((n, table.shape[1])), max(1, 2**22 // units)
    for i in range(0, n, step):
        k = min(step, n - i)
        picks = rng.integers(0, units, (k, units)) + np.arange(k)[:, None] * units
        counts = np.bincount(picks.ravel(), minlength=k * units).reshape(k, units)
        totals[i : i + k] = counts.astype(np.float64) @ table
    return totals


def interval(values):
    """The middle 95 % of bootstrap values; a sample without the cell asked for does not count."""
    return np.nanpercentile(values, [2.5, 97.5]).tolist()


def ratio_interval(above, below, n):
    """Mean above / below over units, with its interval."""
    boot = resample(np.stack([above, below], 1), n)
    return float(above.sum() / below.sum()), interval(boot[:, 0] / boot[:, 1])


class Corpus:
    """All runs on one corpus, measured on the same tokens and resampled together: one set of
    bootstrap samples of the documents serves every loss and every paired difference."""

    def __init__(self, held, resamples):
        self.held, self.resamples, self.nll, self.boot = held, resamples, {}, None

    def measure(self, run, record, device, probes):
        """Everything that needs the model on data, into the run's record."""
        model, held = checkpoint.build_model(run.state, device), self.held
        sample, n = held.rows, self.resamples
        nll = losses(model, sample, device, f"{run.name}: held-out rows")
        size = held.data.token_bytes()[sample.targets]
        sums = [np.bincount(sample.rows, v) for v in (nll, np.ones(len(nll)), size)]
        loss, loss_ci = ratio_interval(sums[0], sums[1], n)
        bits, bits_ci = ratio_interval(sums[0] / math.log(2), sums[2], n)
        record["held_out"] = {"loss": loss, "loss_ci": loss_ci, "bits_per_byte": bits,
                              "bits_per_byte_ci": bits_ci, "rows": len(sample.tokens),
                              "tokens": len(nll), "bytes": int(size.sum())}
        record["rank"] = representation_rank(model, sample, device)
        if not held.docs:
            run.left_out.append("regions and differences: no held-out document fits a row")
            return
        self.nll[run.name] = held.by_document(
            losses(model, held.docs, device, f"{run.name}: whole documents"))
        if probes:
            record["probes"] = probe(model, held, device, probes, n, run.name)

    def resample(self):
        """The bootstrap sums of tokens, floor and each run's nats, by cell."""
        held = self.held
        parts = {"n": held.n} | ({} if held.floor is None else {"floor": held.floor}) | self.nll
        totals = resample(np.concatenate(list(parts.values()), 1), self.resamples)
        self.boot = dict(zip(parts, np.split(totals, len(parts), axis=1)))

    def loss(self, name, cells):
        """Mean nats per token of a run (or of "floor") in some cells, and its bootstrap values."""
        table = self.held.floor if name == "floor" else self.nll[name]
        with np.errstate(invalid="ignore"):
            boot = self.boot[name][:, cells].sum(1) / self.boot["n"][:, cells].sum(1)
        return table[:, cells].sum() / self.held.n[:, cells].sum(), boot

    def decompose(self, name):
        """One run's loss by region and exercise. Shares times losses sum to the total."""
        held, rows = self.held, []
        all_n, all_nll = held.n.sum(), self.nll[name].sum()
        for region, exercise, cells in held.views():
            loss, boot = self.loss(name, cells)
            n = held.n[:, cells].sum()
            rows.append({"region": region, "exercise": exercise, "tokens": int(n),
                         "share": n / all_n, "loss": loss, "loss_ci": interval(boot),
                         "loss_share": self.nll[name][:, cells].sum() / all_nll})
            if held.floor is not None:
                floor, floor_boot = self.loss("floor", cells)
                rows[-1] |= {"floor": floor, "excess": loss - floor,
                             "excess_ci": interval(boot - floor_boot)}
        return rows

    def contrast(self, a, b):
        """Mean loss of the runs a minus that of the runs b, by region and exercise; over the seeds
        that both sides have, if they share any."""
        rows, n, everyone = [], self.held.n.sum(), (a, b)
        pairs = [(x, y) for x in a for y in b if x.seed == y.seed and x.seed is not None]
        if pairs:
            a, b = zip(*pairs)
        for region, exercise, cells in self.held.views():
            mean = [[self.loss(r.name, cells) for r in side] for side in (a, b)]
            point, boot = (np.mean([m[i] for m in mean[0]], 0) - np.mean([m[i] for m in mean[1]], 0)
                           for i in (0, 1))
            share = self.held.n[:, cells].sum() / n
            rows.append({"region": region, "exercise": exercise, "share": share,
                         "delta": float(point), "ci": interval(boot), "weighted": share * point,
                         "each": [p[0] - q[0] for p, q in zip(*mean)] if pairs else []})
        total = {r.name: float(self.loss(r.name, slice(None))[0])
                 for side in everyone for r in side}
        return {"cells": rows, "delta": rows[0]["delta"], "ci": rows[0]["ci"],
                "sides": [[{"name": r.name, "seed": r.seed, "loss": total[r.name]} for r in side]
                          for side in everyone],
                "paired": [{"seed": x.seed, "delta": total[x.name] - total[y.name]}
                           for x, y in pairs]}


# -----------------------------------------------------------------------------
# Probes


def probe_scores(model, data, items, device, label, width):
    """Log-likelihood of each item's candidates after its query and the opening of the answer:
    (items, candidates), or None if an item does not fit a row."""
    encode, specials = load_encoder(str(data.path / "tokenizer.json"))
    docs, spans = [], []
    for item in items:
        for candidate in item["candidates"]:
            record = {"query": item["query"], "synthetic_reasoning": "",
                      "synthetic_answer": item["answer_prefix"]}
            ids = encode_document(record, encode, specials)
            span = encode(candidate)
            docs.append(np.concatenate([ids[:-2], span, ids[-2:]]))  # before <|im_end|><|eos|>
            spans.append(len(span))
    if max(map(len, docs)) > width:
        return None
    nll = losses(model, Sample(*pack_whole(docs, width)), device, label)
    ends = np.cumsum([len(d) - 1 for d in docs]) - 2
    scores = [-nll[end - span : end].sum() for end, span in zip(ends, spans)]
    return np.reshape(scores, (len(items), -1))


def means(columns, n):
    """{name: {"mean", "ci"}} of columns of equal length, resampled together."""
    values = np.stack([np.asarray(v, np.float64) for v in columns.values()], 1)
    boot = resample(values, n) / len(values)
    return {name: {"mean": float(values[:, i].mean()), "ci": interval(boot[:, i])}
            for i, name in enumerate(columns)}


def probe(model, held, device, n, resamples, name):
    """Retrieval by distance, and conflict: does the model answer from the passage or from its
    weights? Scored by likelihood over four candidates, so chance is a quarter."""
    data, width = held.data, held.rows.tokens.shape[1]
    options = data.meta.get("options", {})
    world = {"entities": options.get("entities") or microsynth.ENTITIES,
             "world_seed": options.get("world_seed", 0)}
    # A wide row and a large model must not make this part longer than the others.
    n = min(n, max(8, len(held.docs.targets) // (8 * width)))
    encode, at = data.encoding().encode_ordinary, range(n)
    label, found = f"{name}: probes", {"retrieval": []}
    for distance in DISTANCES:
        items = microsynth.retrieval_probes(n, distances=(distance,), **world)
        scores = probe_scores(model, data, items, device, label, width)
        if scores is None:
            break  # the row is full
        between = [i["query"].removesuffix(i["question"]).split(". ")[-1 - distance : -1]
                   for i in items]
        right = [i["answer"] for i in items]
        found["retrieval"].append({
            "distance": distance, "n": n,
            "tokens": float(np.mean([len(encode(". ".join(b))) for b in between])),
            **means({"loss": -scores[at, right], "exact": scores.argmax(1) == right}, resamples)})
    items = microsynth.conflict_probes(4 * n, **world)
    told, true = ([i[k] for i in items] for k in ("passage", "world"))
    columns, at = {}, range(len(items))
    for key, query in (("with", "query"), ("without", "question")):
        asked = [i | {"query": i[query]} for i in items]
        scores = probe_scores(model, data, asked, device, label, width)
        if scores is None:
            return found
        best = scores.argmax(1)
        columns |= {f"log_odds_{key}": scores[at, told] - scores[at, true],
                    f"passage_{key}": best == told, f"world_{key}": best == true}
    shift = columns["log_odds_with"] - columns["log_odds_without"]
    found["conflict"] = {"n": len(items), **means(columns | {"shift": shift}, resamples)}
    return found
