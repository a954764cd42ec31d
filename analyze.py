"""From checkpoints to what happened: tables with intervals, pictures, one report.

    python analyze.py out/micro_san/ckpt.pt                                # one run
    python analyze.py out/micro_san/ckpt.pt out/micro_ffn_param/ckpt.pt    # a contrast
    python analyze.py out/*/ckpt.pt --out=report                           # the study's tables

Reads the checkpoints, the milestones and log.jsonl beside them, and the corpus they were trained
on; what is missing is said and left out. Writes report.md, analysis.json (every number of the
report) and PNGs to --out, by default analysis/ in the first run's folder. The same input gives the
same bytes. A difference is SAN minus FFN, or variant minus base, in nats per token.
"""

import itertools
import json
import math
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import checkpoint
import dataset
import measure
import plots
import prepare
from configurator import ConfigError, UserError, fail, load
from model import ModelConfig, flops_per_token, mean_context, num_params
from plots import number, spread

NOISE_FLOOR = 0.0015  # nats: two equal runs of the study, section 3
WORK = {"cpu": 2e12, "cuda": 2e15}  # forward FLOPs a run's two held-out samples may cost by default
MOST_TOKENS = 2**18  # of each sample; more only on request
# Each arm has rates of its own, locked by its own sweep: they never make two runs another pair.
RATES = {"muon_lr", "adam_lr", "muon_order"}
ARM = {"use_ffn", "n_layer", "n_inner"}
BASE = {"residual": "gated", "norm": "zcrms", "qk_norm": True, "post_norm": False,
        "optimizer": "muon", "max_docs": 0}  # fmt: skip
CORPUS = {"dataset", "data", "vocab_size"}
BUDGET = {"tokens", "max_steps", "warmup_steps", "decay_steps"}
# What the parameter-matched pairs of one family differ in, besides the rates.
FACETS = {"size": {"n_embd", "n_head", "n_kv_head", "n_layer", "n_inner"}, "tokens": BUDGET,
          "optimizer": {"optimizer"}, "max_docs": {"max_docs"}, "dataset": CORPUS}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Options of analyze.py: python analyze.py CHECKPOINT ... [--key=value ...]"""

    out: str = ""  # folder to write; empty: analysis/ in the first run's folder, or here
    data_dir: str = ""  # where corpora are kept; empty: as each run's config says
    noise_floor: float = 0.0  # nats; 0: from a zcrms/rms pair among the runs, or the study's
    eval_tokens: int = 0  # held-out tokens of each sample; 0: what the machine does in about a minute
    resamples: int = 10000  # of every bootstrap
    probes: int = 100  # items of each kind and distance; 0: none


# -----------------------------------------------------------------------------
# Runs


class Run:
    """A checkpoint and what lies beside it. Raises CheckpointError."""

    def __init__(self, path):
        path = Path(path) / "ckpt.pt" if Path(path).is_dir() else Path(path)
        self.path, self.folder = path, path.resolve().parent
        state = checkpoint.read(path)
        try:
            self.cfg = ModelConfig(**state["model_config"])
        except (TypeError, ValueError) as error:
            raise checkpoint.CheckpointError(f"{path}: {error}") from error
        self.state, self.name, self.left_out = state, self.folder.name, []
        self.step, self.tokens = state.get("step", 0), state.get("tokens", 0)
        config = dict(state.get("config", {}))
        self.seed, self.data = config.get("seed"), state.get("data", {})
        self.config = vars(self.cfg) | config
        self.key = {k: v for k, v in self.config.items() if k not in checkpoint.FREE | {"seed"}}
        self.key |= {"tokens": self.tokens, "data": self.data.get("sha256")}
        self.events = []
        if (self.folder / "log.jsonl").is_file():
            lines = (self.folder / "log.jsonl").read_bytes().split(b"\n")[:-1]
            events = [json.loads(line) for line in lines]
            self.events = [e for e in events if e["step"] <= self.step]
        else:
            self.left_out.append("no log.jsonl beside it: no curves, no gates over time")

    def milestones(self):
        """(step, weights) of this run up to this checkpoint, oldest first."""
        for path in checkpoint.numbered(self.folder):
            if int(path.stem[5:]) < self.step:
                state = checkpoint.read(path)
                if state["model_config"] == self.state["model_config"]:
                    yield state["step"], state["model"]
        yield self.step, self.state["model"]

    def describe(self):
        """What needs no weights, as the run's entry in analysis.json."""
        total, inside = num_params(self.cfg)
        evals = [e for e in self.events if e["event"] == "eval"]
        return {
            "name": self.name, "arm": "FFN" if self.cfg.use_ffn else "SAN", "seed": self.seed,
            "step": self.step, "tokens": self.tokens, "max_steps": self.config.get("max_steps"),
            "dataset": self.config.get("dataset"),
            "settings": {k: self.config.get(k) for k in sorted(vars(self.cfg) | BASE)},
            "params": total, "params_non_embedding": inside,
            "flops_per_token": {c: flops_per_token(self.cfg, mean_context(self.cfg, c))
                                for c in ("dense", "causal")},
            "curve": {"tokens": [e["tokens"] for e in evals], "loss": [e["val_loss"] for e in evals]},
            "logged_loss": evals[-1]["val_loss"] if evals else None, "left_out": self.left_out,
        }  # fmt: skip


# -----------------------------------------------------------------------------
# Comparisons


class Group:
    """Runs that differ in nothing but the seed."""

    def __init__(self, runs):
        self.runs, self.key, self.cfg = runs, runs[0].key, runs[0].cfg
        common = os.path.commonprefix([r.name for r in runs])
        self.name = runs[0].name if len(runs) == 1 else (
            re.sub(r"[_.-]*(s|seed)?_?\d*$", "", common) or runs[0].name)

    def differ(self, other):
        keys = self.key.keys() | other.key.keys()
        return {k for k in keys if self.key.get(k) != other.key.get(k)} - RATES

    def oddity(self):
        """How many switches are off the base, to find the pair that the others refer to."""
        return sum(self.key.get(k, v) != v for k, v in BASE.items())


def match(a, b):
    """What two arms are matched on, the axis with the ratio nearest to 1, and FFN / SAN of each."""
    ratios = {
        "depth": b.cfg.n_layer / a.cfg.n_layer,
        "params": num_params(b.cfg)[0] / num_params(a.cfg)[0],
        "flops": flops_per_token(b.cfg, b.cfg.block_size) / flops_per_token(a.cfg, a.cfg.block_size),
    }
    axis = min(ratios, key=lambda k: abs(math.log(ratios[k])))
    return axis if abs(math.log(ratios[axis])) < 0.15 else "none", ratios


def comparisons(groups):
    """What can be contrasted: dicts of kind (pair | variant | other), what, ratios, groups a, b."""
    found = []
    for a, b in itertools.permutations(groups, 2):
        d = a.differ(b)
        if not a.cfg.use_ffn and b.cfg.use_ffn and d <= ARM:
            axis, ratios = match(a, b)
            found.append({"kind": "pair", "what": axis, "ratios": ratios, "a": a, "b": b})
        elif len(d) == 1 and d <= set(BASE):
            key = d.pop()
            if b.key.get(key) == BASE[key]:
                found.append({"kind": "variant", "what": f"{key}={a.key[key]}", "a": a, "b": b})
    if not found and len(groups) == 2:
        a, b = sorted(groups, key=lambda g: g.cfg.use_ffn)
        if a.key["data"] != b.key["data"] or a.key.get("dataset") != b.key.get("dataset"):
            raise ConfigError(f"{a.name} and {b.name} were trained on different corpora "
                              f"({a.key.get('dataset')}, {b.key.get('dataset')}); their losses "
                              f"cannot be compared")
        found.append({"kind": "other", "what": ", ".join(sorted(a.differ(b))), "a": a, "b": b})
    return found


def families(found):
    """{facet: positions in found} of the parameter-matched pairs that differ in that facet only,
    from the pair that is nearest to the base."""
    pairs = [i for i, c in enumerate(found) if (c["kind"], c["what"]) == ("pair", "params")]
    pairs.sort(key=lambda i: (found[i]["a"].oddity(), -found[i]["a"].key["tokens"]))
    out = {}
    for facet, keys in FACETS.items():
        same = [i for i in pairs if found[i]["a"].differ(found[pairs[0]]["a"]) <= keys]
        if len(same) > 1:
            out[facet] = same
    return out, pairs[0] if pairs else None


def noise_floor(given, contrasts):
    """Nats that two equal runs may differ by, and where the figure comes from."""
    if given:
        return given, "as given"
    controls = [c for c in contrasts if c["what"] == "norm=rms" and c.get("delta")]
    if controls:
        names = ", ".join(f"{c['a']} / {c['b']}" for c in controls)
        return float(np.mean([abs(c["delta"]) for c in controls])), f"measured: rms / zcrms, {names}"
    return NOISE_FLOOR, "the study's, theirs; give a norm=rms twin of a run to measure your own"


def verdict(c, floor):
    """One of three words for a difference, and the reason."""
    names = ("SAN", "FFN") if c["kind"] == "pair" else (c["a"], c["b"])
    signs = {p["delta"] > 0 for p in c["paired"]}
    if abs(c["delta"]) < 2 * floor:
        return "tie", f"below twice the noise floor of {floor:.4f}"
    if c["ci"][0] <= 0 <= c["ci"][1]:
        return "undecided", "the interval holds 0"
    if len(signs) > 1:
        return "undecided", "the seeds disagree in sign"
    return f"{names[c['delta'] > 0]} better", "interval and noise floor exclude 0"


# -----------------------------------------------------------------------------
# Report


def table(header, rows):
    """A markdown table with aligned columns; numbers to the right."""
    rows = [["" if c is None else str(c) for c in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    right = [all(re.fullmatch(r"[-+\d.,%]*", r[i]) for r in rows) for i in range(len(header))]
    line = ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right)]
    return "\n".join("| " + " | ".join(c.rjust(w) if r else c.ljust(w)
                                       for c, w, r in zip(row, widths, right)) + " |"
                     for row in (header, line, *rows))


def run_tables(a):
    rows = []
    for r in a["runs"]:
        h = r.get("held_out", {})
        rows.append([r["name"], r["arm"], r["settings"]["n_layer"], r["settings"]["n_embd"],
                     f"{r['params']:,}", f"{r['params_non_embedding']:,}",
                     f"{r['flops_per_token']['dense'] / 1e6:.1f}", f"{r['tokens'] / 1e6:.1f}",
                     number(r["logged_loss"]), number(h.get("loss")), spread(h.get("loss_ci")),
                     number(h.get("bits_per_byte")), spread(h.get("bits_per_byte_ci"))])
    return table(["run", "arm", "L", "d", "parameters", "non-embed.", "MFLOP/token", "M tokens",
                  "logged loss", "loss", "95 %", "bits/byte", "95 %"], rows)


def contrast_table(a):
    rows = []
    for c in a["contrasts"]:
        losses = [plots.side_loss(a, c[s]) for s in "ab"]
        delta = c.get("delta", None if None in losses else losses[0] - losses[1])
        what = plots.AXES[c["what"]] if c["kind"] == "pair" else c["what"]
        if c["kind"] == "pair":
            what += " (FFN/SAN " + ", ".join(f"{k} {v:.2f}" for k, v in c["ratios"].items()) + ")"
        rows.append([what, c["a"], c["b"], *map(number, losses), number(delta, sign="+"),
                     spread(c.get("ci")), c.get("verdict", "no data: from the logs"),
                     number(plots.STUDY.get(c["kind"], {}).get(c["what"]), sign="+")])
    return table(["contrast", "a", "b", "loss a", "loss b", "a - b", "95 %", "verdict",
                  "study's a - b"], rows)


def seeds_table(a):
    rows = []
    for c in a["contrasts"]:
        for side, name in zip(c.get("sides", ()), (c["a"], c["b"])):
            if len(side) > 1:
                values = [s["loss"] for s in side]
                rows.append([name, np.mean(values), np.std(values, ddof=1),
                             ", ".join(f"{s['seed']}: {s['loss']:.4f}" for s in side)])
        if len(c["paired"]) > 1:
            values = [p["delta"] for p in c["paired"]]
            rows.append([f"{c['a']} - {c['b']}", np.mean(values), np.std(values, ddof=1),
                         ", ".join(f"{p['seed']}: {p['delta']:+.4f}" for p in c["paired"])])
    unique = {row[0]: [row[0], f"{row[1]:.4f}", f"{row[2]:.4f}", row[3]] for row in rows}
    return table(["seeds of", "mean", "std (n - 1)", "each"], unique.values()) if rows else ""


def region_tables(a):
    text = []
    for c in plots.main_contrasts(a):
        regions = [x for x in c["cells"] if x["exercise"] == "all"]
        theirs = plots.STUDY["regions"]
        text.append(f"{c['a']} - {c['b']} at {c['tokens'] / 1e6:.1f}M tokens:\n\n" + table(
            ["region", "share", "a - b", "95 %", "share x (a - b)", *(f"study at {k}" for k in theirs)],
            [[x["region"], f"{x['share']:.1%}", number(x["delta"], sign="+"), spread(x["ci"]),
              number(x["weighted"], 5, "+"),
              *(number(v.get(x["region"]), sign="+") for v in theirs.values())] for x in regions]))
        total = sum(x["weighted"] for x in regions[1:])
        text[-1] += (f"\n\nShares times differences sum to {total:+.6f}; the difference of the totals "
                     f"is {c['delta']:+.6f}.")
        exercises = list(dict.fromkeys(x["exercise"] for x in c["cells"]))
        cell = {(x["exercise"], x["region"]): f"{x['delta']:+.4f} {spread(x['ci'])}"
                for x in c["cells"]}
        names = [x["region"] for x in regions if x["region"] != "other"]
        text.append(table(["exercise", *names],
                          [[e, *(cell.get((e, r)) for r in names)] for e in exercises]))
    return "\n\n".join(text)


def decomposition_tables(a):
    text = []
    for r in plots.featured(a):
        cells = r.get("decomposition", [])
        floor = cells and "floor" in cells[0]
        rows = [[c["exercise"], c["region"], f"{c['share']:.1%}", f"{c['loss_share']:.1%}",
                 number(c["loss"]), spread(c["loss_ci"])] + floor * [
                     number(c.get("floor")), number(c.get("excess")), spread(c.get("excess_ci"))]
                for c in cells if c["region"] != "other" or c["exercise"] == "all"]
        if rows:
            text.append(f"{r['name']}:\n\n" + table(
                ["exercise", "region", "token share", "loss share", "loss", "95 %"]
                + floor * ["floor", "excess", "95 %"], rows))
    return "\n\n".join(text)


def family_tables(a):
    text = []
    for facet, found in a["families"].items():
        rows = [["ours", plots.short(plots.facet_value(c, facet)), number(plots.side_loss(a, c["a"])),
                 number(plots.side_loss(a, c["b"])), number(c.get("delta"), sign="+"),
                 spread(c.get("ci"))] for c in (a["contrasts"][i] for i in found)]
        rows += [["study", label, number(s), number(f), number(d, sign="+"), ""]
                 for label, _, s, f, d in plots.STUDY[facet]]
        text.append(f"{plots.FACETS[facet]} ({plots.UNITS[facet]}):\n\n" + table(
            ["whose", facet, "SAN", "FFN", "SAN - FFN", "95 %"], rows))
    return "\n\n".join(text)


def depth_table(a):
    found = plots.depth_ladder(a)
    rows = [[whose, residual, layers, number(loss)] for whose, lines in
            (("ours", found), ("study", plots.STUDY["depth"]))
            for residual, points in lines.items() for layers, loss in points.items()]
    return table(["whose", "residual", "layers", "loss"], rows) if found else ""


def probe_tables(a):
    near, conflict = [], []
    for r in a["runs"]:
        p = r.get("probes", {})
        near += [[r["name"], q["distance"], f"{q['tokens']:.0f}", f"{q['exact']['mean']:.2f}",
                  spread(q["exact"]["ci"], 2), f"{q['loss']['mean']:.3f}", spread(q["loss"]["ci"], 3)]
                 for q in p.get("retrieval", [])]
        if c := p.get("conflict"):
            conflict += [[r["name"], text, f"{c['passage_' + k]['mean']:.2f}",
                          f"{c['world_' + k]['mean']:.2f}", f"{c['log_odds_' + k]['mean']:+.3f}",
                          spread(c["log_odds_" + k]["ci"], 3)]
                         for k, text in (("with", "passage contradicts"), ("without", "question alone"))]
    if not near:
        return ""
    return table(["retrieval", "sentences", "tokens", "right of 4", "95 %", "-log p", "95 %"], near) \
        + "\n\n" + table(["conflict", "asked", "from passage", "from weights", "log-odds", "95 %"],
                         conflict)


def spectra_table(a):
    rows = []
    for r in a["runs"]:
        steps = r["spectra"] if r in plots.featured(a) else r["spectra"][-1:]
        for m in steps:
            rows += [[r["name"], m["step"], kind,
                      *(f"{np.mean(v[k]):.{d}f} ± {np.std(v[k]):.{d}f}" for k, d in
                        (("stable_rank", 1), ("effective_rank", 1), ("top", 3)))]
                     for kind, v in m["matrices"].items()]
    theirs = "; ".join(f"{k}: " + ", ".join(f"{m} {v}" for m, v in row.items())
                       for k, row in plots.STUDY["spectra"].items())
    return table(["run", "step", "matrix", "stable rank", "effective rank", "largest singular value"],
                 rows) + f"\n\nMean ± std over layers. The study's stable ranks, theirs, at d 512: {theirs}."


def rank_table(a):
    rows = [[r["name"], f"{r['rank']['lowest']:.1f}", r["rank"]["width"], r["rank"]["lowest_layer"],
             " ".join(f"{v:.0f}" for v in r["rank"]["by_layer"])] for r in a["runs"] if "rank" in r]
    return table(["run", "lowest", "of", "at layer", "from the embedding to the last layer"],
                 rows) + "\n\nThe study's, theirs: never below 173 of 512 at 20 layers." if rows else ""


def gate_table(a):
    rows = [[r["name"], part, " ".join(f"{v:.3f}" for v in values)] for r in a["runs"] if r["gates"]
            for part, values in r["gates"]["now"].items()]
    return table(["run", "sublayer", "scale, first to last layer"], rows) if rows else ""


def report(a, pictures):
    """report.md as text: a table and a picture for all that the analysis holds."""
    text = ["# " + ", ".join(g["name"] for g in a["groups"])]
    for h in a["held_out"]:
        text.append(f"{h['dataset']}: {h['rows']:,} held-out rows of {h['block_size']}, and "
                    f"{h['documents']:,} whole documents of {h['tokens']:,} scored tokens "
                    f"({h['too_long']:,} longer than a row left out).")
    text.append(f"Differences are SAN minus FFN or a minus b, nats per token; intervals 95 %, "
                f"{a['resamples']:,} bootstrap samples of rows or documents. Noise floor "
                f"{a['noise_floor']['value']:.4f} ({a['noise_floor']['source']}); a difference "
                f"below twice that is a tie.")
    gone = [f"- {r['name']}: {why}" for r in a["runs"] for why in r["left_out"]]
    text.append("Left out:\n" + "\n".join(gone) if gone else "")
    sections = (("runs", "Runs", run_tables), ("curves", "Loss curves", None),
                ("contrasts", "Contrasts", contrast_table), ("", "", seeds_table),
                ("regions", "Where the difference is", region_tables),
                ("families", "Families of pairs", family_tables), ("depth", "Depth", depth_table),
                ("decomposition", "Where the loss is", decomposition_tables),
                ("probes", "Probes", probe_tables), ("spectra", "Spectra", spectra_table),
                ("gates", "Gates", gate_table), ("rank", "Rank of the stream", rank_table))
    for key, title, function in sections:
        body = function(a) if function and (function is not contrast_table or a["contrasts"]) else ""
        picture = [f"![{pictures[key][1]}]({pictures[key][0]})", pictures[key][1]] \
            if key in pictures else []
        if body or picture:
            text += [f"## {title}"] * bool(title) + [body] * bool(body) + picture
    return "\n\n".join(t for t in text if t) + "\n"


# -----------------------------------------------------------------------------
# Main


def open_corpora(runs, options, device):
    """{(dataset, hash): Corpus} of what is on disk; each run that has none is told why."""
    found = {}
    for key, members in itertools.groupby(sorted(runs, key=corpus_key), corpus_key):
        members = list(members)
        try:
            folder = Path(options.data_dir or members[0].config.get("data_dir", "data")) / key[0]
            data = dataset.Dataset(folder)
            if key[1] and data.meta["files"]["tokens.bin"]["sha256"] != key[1]:
                raise dataset.DataError(f"{folder} is not the corpus this run was trained on")
            work = min(3 * WORK[device] / flops_per_token(r.cfg, mean_context(r.cfg, "document"))
                       for r in members) / 2
            most = options.eval_tokens or min(MOST_TOKENS, int(work))
            logged = min(r.config.get("eval_tokens", most) for r in members)
            n_tokens = options.eval_tokens or min(logged, most), most
            held = measure.HeldOut(data, min(r.cfg.block_size for r in members), n_tokens)
            found[key] = measure.Corpus(held, options.resamples)
        except dataset.DataError as error:
            for run in members:
                run.left_out.append(f"all that needs data: {error}")
    return found


def corpus_key(run):
    return run.config.get("dataset") or "?", run.data.get("sha256") or ""


def measure_all(runs, options, device):
    """Every run's entry of analysis.json, and the corpora they were measured on."""
    corpora, records = open_corpora(runs, options, device), []
    for run in tqdm(runs, desc="runs", unit="run", disable=None, leave=False):
        record = run.describe() | {"gates": measure.gates(run), "spectra": []}
        records.append(record)
        steps = tqdm(run.milestones(), desc=f"{run.name}: spectra", leave=False, disable=None)
        for step, weights in steps:
            found, broken = measure.spectra(weights)
            record["spectra"].append({"step": step, "matrices": found})
            run.left_out += [f"step {step}: {name} {why}" for name, why in broken.items()]
        corpus = corpora.get(corpus_key(run))
        bad = [n for n, w in run.state["model"].items() if not torch.isfinite(w).all()]
        if corpus and bad:
            run.left_out.append(f"all that needs data: {bad[0]} is not finite")
        elif corpus:
            micro = corpus.held.data.meta["source"] == "microsynth"
            try:
                corpus.measure(run, record, device, options.probes if micro else 0)
            except checkpoint.CheckpointError as error:
                run.left_out.append(f"all that needs data: {error}")
    for corpus in corpora.values():
        if corpus.nll:
            corpus.resample()
    for run, record in zip(runs, records):
        corpus = corpora.get(corpus_key(run))
        if corpus and run.name in corpus.nll:
            record["decomposition"] = corpus.decompose(run.name)
    return records, corpora


def contrast(comparison, corpora):
    """A comparison with its numbers: by document where the corpus is there, else from the logs."""
    a, b = comparison["a"], comparison["b"]
    entry = comparison | {"a": a.name, "b": b.name, "tokens": a.key["tokens"], "paired": [],
                          "dataset": a.key.get("dataset"), "settings": a.key}
    corpus = corpora.get(corpus_key(a.runs[0]))
    sides = [[r for r in g.runs if corpus and r.name in corpus.nll] for g in (a, b)]
    return entry | corpus.contrast(*sides) if all(sides) else entry


def analyse(runs, options):
    """The whole analysis as one dict, from which tables and pictures are made."""
    groups = {}
    for run in runs:
        groups.setdefault(json.dumps(run.key, sort_keys=True), []).append(run)
    groups = [Group(members) for members in groups.values()]
    found = comparisons(groups)  # before the slow part: it may refuse
    device = "cuda" if torch.cuda.is_available() else "cpu"
    records, corpora = measure_all(runs, options, device)
    contrasts = [contrast(c, corpora) for c in found]
    floor, source = noise_floor(options.noise_floor, contrasts)
    for c in contrasts:
        if "delta" in c:
            c["verdict"], c["reason"] = verdict(c, floor)
    family, base = families(found)
    held = [{"dataset": c.held.data.name, "documents": len(c.held.ids), "too_long": c.held.too_long,
             "tokens": int(c.held.n.sum()), "rows": len(c.held.rows.tokens),
             "block_size": c.held.rows.tokens.shape[1] - 1} for c in corpora.values()]
    return {"format": 1, "runs": records, "contrasts": contrasts, "families": family, "base": base,
            "groups": [{"name": g.name, "runs": [r.name for r in g.runs]} for g in groups],
            "held_out": held, "noise_floor": {"value": floor, "source": source},
            "resamples": options.resamples}  # fmt: skip


def rounded(value):
    """The same nest with floats at 7 significant digits, and null for what is not finite."""
    if isinstance(value, dict):
        return {str(k): rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v) for v in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def out_folder(options, run):
    """The folder to write, made: as asked, else in the run's folder, else here."""
    for folder in [Path(options.out)] if options.out else [run.folder / "analysis", Path("analysis")]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            prepare.write_whole(folder / "report.md", b"")
            return folder
        except OSError as error:
            reason = error
    raise ConfigError(f"cannot write to {folder}: {reason.strerror}")


def main(argv):
    paths = [a for a in argv if not a.startswith("-")]
    options, _ = load(Options, [a for a in argv if a.startswith("-")])
    if not paths:
        raise ConfigError("give at least one checkpoint: python analyze.py out/<run>/ckpt.pt")
    runs = [Run(path) for path in paths]
    names = [r.name for r in runs]
    for run in runs:  # the folder's name says which run, as far as it can
        if names.count(run.name) > 1:
            run.name = f"{run.name}@{run.step}"
    if len({r.name for r in runs}) < len(runs):
        raise ConfigError("the same checkpoint, or two folders of one name, were given twice")
    folder = out_folder(options, runs[0])
    analysis = rounded(analyse(runs, options))
    numbers = json.dumps(analysis, indent=1, sort_keys=True)
    prepare.write_whole(folder / "analysis.json", numbers.encode())
    pictures = plots.draw(analysis, folder)
    text = report(analysis, pictures)
    prepare.write_whole(folder / "report.md", text.encode())
    print(re.sub(r"\n!\[.*?\]\(.*?\)\n", "", text))
    print(f"{folder}/report.md: this text with {len(pictures)} pictures; analysis.json: the numbers")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (UserError, dataset.DataError) as error:
        fail(error)
