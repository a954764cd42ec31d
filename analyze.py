"""From checkpoints to what happened: tables with intervals, pictures, one report.

    python analyze.py out/micro_san/ckpt.pt                                # one run
    python analyze.py out/micro_san/ckpt.pt out/micro_ffn_param/ckpt.pt    # a contrast
    python analyze.py out/*/ckpt.pt --out=report                           # the study's tables

Reads the checkpoints, the milestones and log.jsonl beside them, and the corpus they were trained
on; what is missing is said and left out. Writes report.md, analysis.json (every number of the
report) and PNGs to --out, by default analysis/ in the first run's folder. The same input gives the
same bytes. A difference is SAN minus FFN, or variant minus base, in nats per token. Three runs or
more are held against predictions.toml too (judge.py).
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
import judge
import measure
import plots
import prepare
from configurator import ConfigError, UserError, fail, load, split
from model import ModelConfig, flops_per_token, mean_context, num_params, partner
from report import report

NOISE_FLOOR = 0.0015  # nats: two equal runs of the study, section 3
WORK = {"cpu": 4e12, "cuda": 4e15}  # forward FLOPs a run's two held-out samples may cost by default
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
    eval_tokens: int = 0  # held-out tokens of each sample; 0: what takes about a minute
    resamples: int = 10000  # of every bootstrap
    probes: int = 100  # items of each kind and distance; 0: none
    predictions: str = ""  # statements to judge; empty: for 3 runs and more, predictions.toml here


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
        self.events, self.diverged, self.started = [], None, None
        if (self.folder / "log.jsonl").is_file():
            lines = (self.folder / "log.jsonl").read_bytes().split(b"\n")[:-1]
            events = [json.loads(line) for line in lines]
            self.events = [e for e in events if e["step"] <= self.step]
            self.diverged = self.divergence(events)
        else:
            self.left_out.append("no log.jsonl beside it: no curves, no gates over time")
        if self.diverged is not None:
            self.left_out.append(f"diverged at step {self.diverged}; what is told of it is of its "
                                 f"checkpoint at step {self.step}, not of a finished run")
        if (self.folder / "run.json").is_file():
            self.started = json.loads((self.folder / "run.json").read_bytes()).get("started")

    def divergence(self, events):
        """The step at which the run stopped on, or ended with, a value that is not finite."""
        evals = [e for e in events if e["event"] == "eval"]
        bad = [e for e in events if e["event"] == "nonfinite"
               and self.config.get("nonfinite") != "skip"]
        bad += [e for e in evals[-1:] if not math.isfinite(e["val_loss"])]
        return bad[-1]["step"] if bad else None

    def status(self):
        if self.diverged is not None:
            return "diverged"
        return "done" if self.step == self.config.get("max_steps") else "unfinished"

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
        evals = [e for e in self.events if e["event"] == "eval" and math.isfinite(e["val_loss"])]
        return {
            "name": self.name, "arm": "FFN" if self.cfg.use_ffn else "SAN", "seed": self.seed,
            "step": self.step, "tokens": self.tokens, "max_steps": self.config.get("max_steps"),
            "dataset": self.config.get("dataset"), "status": self.status(), "started": self.started,
            "settings": {k: self.config.get(k) for k in sorted(vars(self.cfg) | BASE)},
            "params": total, "params_non_embedding": inside,
            "flops_per_token": {c: flops_per_token(self.cfg, mean_context(self.cfg, c))
                                for c in ("dense", "causal")},
            "curve": {"tokens": [e["tokens"] for e in evals],
                      "loss": [e["val_loss"] for e in evals]},
            "logged_loss": evals[-1]["val_loss"] if evals else None, "left_out": self.left_out,
        }  # fmt: skip


# -----------------------------------------------------------------------------
# Comparisons


def changed(a, b):
    """Keys whose values differ. An option that one program did not have yet is no difference."""
    return {k for k in a.keys() & b.keys() if a[k] != b[k]}


class Group:
    """Runs that differ in nothing but the seed."""

    def __init__(self, runs):
        self.runs, self.key, self.cfg = runs, runs[0].key, runs[0].cfg
        common = os.path.commonprefix([r.name for r in runs])
        self.name = runs[0].name if len(runs) == 1 else (
            re.sub(r"[_.-]*(s|seed)?_?\d*$", "", common) or runs[0].name)

    def differ(self, other):
        return changed(self.key, other.key) - RATES

    def oddity(self):
        """How many switches are off the base, to find the pair that the others refer to."""
        return sum(self.key.get(k, v) != v for k, v in BASE.items())


def group_seeds(runs):
    """Runs that differ in the seed alone, together; groups have different names."""
    groups, names = [], set()
    for run in runs:
        same = next((g for g in groups if not changed(g[0].key, run.key)), None)
        if same:
            same.append(run)
        else:
            groups.append([run])
    groups = [Group(members) for members in groups]
    for group in groups:
        group.name = group.runs[0].name if group.name in names else group.name
        names.add(group.name)
    return groups


def match(a, b):
    """What two arms are matched on, the axis with the ratio nearest to 1, and FFN / SAN of each."""
    cost = [{"depth": cfg.n_layer, "params": num_params(cfg)[0],
             "flops": flops_per_token(cfg, cfg.block_size)} for cfg in (a.cfg, b.cfg)]
    ratios = {axis: cost[1][axis] / cost[0][axis] for axis in cost[0]}
    axis = min(ratios, key=lambda k: abs(math.log(ratios[k])))
    if abs(math.log(ratios[axis])) < 0.15:
        return axis, ratios
    # Layers are few at small sizes: the most that cost no more are the match, near or not.
    return "flops" if b.cfg == partner(a.cfg, "flops")[0] else "none", ratios


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
        size = float(np.mean([abs(c["delta"]) for c in controls]))
        return size, f"measured: rms / zcrms, {names}"
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
# Main


def open_corpora(runs, options, device):
    """{(dataset, hash): Corpus} of what is on disk; each run that has none is told why."""
    found = {}
    for key, members in itertools.groupby(sorted(runs, key=corpus_key), corpus_key):
        members = list(members)
        try:
            folder = Path(options.data_dir or members[0].config.get("data_dir", "data")) / key[0]
            data = dataset.Dataset(folder)
            if data.vocab_size > min(r.cfg.vocab_size for r in members):
                raise dataset.DataError(f"{folder} has more token ids than the model")
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
    groups = group_seeds(runs)
    found = comparisons(groups)  # before the slow part: it may refuse
    device = "cuda" if torch.cuda.is_available() else "cpu"
    records, corpora = measure_all(runs, options, device)
    contrasts = [contrast(c, corpora) for c in found]
    floor, source = noise_floor(options.noise_floor, contrasts)
    for c, sides in zip(contrasts, found):
        if lost := [r.name for s in "ab" for r in sides[s].runs if r.diverged is not None]:
            c["verdict"], c["reason"] = f"{lost[0]} diverged", "its loss is of an early step"
        elif "delta" in c:
            c["verdict"], c["reason"] = verdict(c, floor)
    family, base = families(found)
    held = [{"dataset": c.held.data.name, "documents": len(c.held.ids), "too_long": c.held.too_long,
             "tokens": int(c.held.n.sum()) if c.nll else 0, "rows": len(c.held.rows.tokens),
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
    asked = [Path(options.out)] if options.out else []
    for folder in asked or [run.folder / "analysis", Path("analysis")]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            prepare.write_whole(folder / "report.md", b"")
            return folder
        except OSError as error:
            reason = error
    raise ConfigError(f"cannot write to {folder}: {reason.strerror}")


def main(argv):
    paths, flags = split(Options, argv)
    options, _ = load(Options, flags)
    if not paths:
        raise ConfigError("give at least one checkpoint: python analyze.py out/<run>/ckpt.pt")
    runs = [Run(path) for path in paths]
    names = [r.name for r in runs]
    for run in runs:  # the folder's name says which run, as far as it can
        if names.count(run.name) > 1:
            run.name = f"{run.name}@{run.step}"
    if len({r.name for r in runs}) < len(runs):
        raise ConfigError("the same checkpoint, or two folders of one name, were given twice")
    file, statements = Path(options.predictions or Path(__file__).with_name("predictions.toml")), []
    # Python 3.10 cannot read them.
    if options.predictions or len(runs) > 2 and file.is_file() and sys.version_info >= (3, 11):
        statements = judge.read(file)
    folder = out_folder(options, runs[0])
    analysis = rounded(analyse(runs, options))
    if statements:
        times = judge.committed(file, statements)
        analysis["predictions"] = rounded(judge.judge(analysis, statements, times))
    numbers = json.dumps(analysis, indent=1, sort_keys=True)
    prepare.write_whole(folder / "analysis.json", numbers.encode())
    pictures = plots.draw(analysis, folder)
    text = report(analysis, pictures)
    prepare.write_whole(folder / "report.md", text.encode())
    print(report(analysis, {}, brief=len(runs) > 2))
    print(f"{folder}/report.md: all tables, {len(pictures)} pictures; analysis.json: the numbers")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        fail(error)
