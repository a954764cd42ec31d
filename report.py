"""The tables of an analysis, and the study's own figures beside ours. Reads analysis.json alone.

    text = report(analysis, pictures)      # report.md; pictures from plots.draw

Rows and columns marked "study" are arXiv:2607.18363's own figures, never ours.
"""

import math
import re
import statistics

AXES = {"params": "equal parameters", "flops": "equal FLOPs", "depth": "equal depth",
        "none": "matched on nothing"}  # fmt: skip
UNITS = {"size": "parameters without the embedding, millions", "tokens": "training tokens",
         "optimizer": "optimiser of the block matrices", "max_docs": "unique training documents",
         "dataset": "corpus"}  # fmt: skip
FACETS = {"size": "Size ladder", "tokens": "Budget", "optimizer": "Optimiser",
          "max_docs": "Repetition", "dataset": "Corpora"}  # fmt: skip
# arXiv:2607.18363, sections 3 and 4: nats per token; families as (label, x, SAN, FFN, difference).
STUDY = {
    "pair": {"params": 0.0055, "flops": 0.263, "depth": 0.470},
    "variant": {"post_norm=True": -0.0092, "residual=standard": -0.0013, "residual=rezero": 0.0032,
                "norm=rms": 0.0015, "residual=none": 0.75, "qk_norm=False": 6.15,
                "optimizer=adamw": -0.0023},
    "regions": {"31B": {"all": 0.011, "query": 0.052, "trace": 0.008, "answer": 0.011},
                "105B": {"all": -0.0025, "query": 0.038, "trace": -0.004, "answer": -0.007}},
    "shares": {"query": 0.058, "trace": 0.572, "answer": 0.359},
    "size": [("tiny", 1970186, 2.7219, 2.7664, -0.0445), ("small", 6200718, 2.3771, 2.3697, 0.0074),
             ("base", 15741972, 2.1159, 2.0963, 0.0196),
             ("large", 31969434, 1.9275, 1.9059, 0.0216), ("xl", 56652576, 1.7849, 1.7647, 0.0202)],
    "tokens": [("5B", 5e9, None, None, 0.046), ("30B", 30e9, None, None, 0.019),
               ("105B", 105e9, 2.0685, 2.0650, 0.0055)],
    "optimizer": [("muon", "muon", 2.1126, 2.0933, 0.0193),
                  ("adamw", "adamw", 2.1103, 2.0950, 0.0153)],
    "max_docs": [("2M", 2e6, 2.1193, 2.0975, 0.0218), ("8M", 8e6, 2.1117, 2.1018, 0.0099),
                 ("32M", 32e6, 2.1095, 2.0926, 0.0169), ("78M", 78e6, 2.1126, 2.0933, 0.0193)],
    "dataset": [("SYNTH", "synth", 2.1159, 2.0963, 0.0196),
                ("fineweb-edu", "fineweb-edu", 3.0131, 2.9733, 0.0398)],
    "depth": {"gated": {8: 2.168, 32: 2.153, 48: 2.175},
              "standard": {8: 2.164, 32: 2.150, 48: 2.177}},
    "spectra": {"at init": {"q": 129, "k": 89, "v": 89, "o": 130},
                "SAN, Muon, 75 %": {"q": 72, "k": 53, "v": 70, "o": 86},
                "SAN, AdamW, 75 %": {"q": 29, "k": 30, "v": 68, "o": 30}},
}  # fmt: skip

# -----------------------------------------------------------------------------
# Numbers


def spread(ci, most=4):
    """An interval, with no digit that another seed of the bootstrap would change by more than one:
    with 10,000 samples its ends are good to 0.03 standard errors."""
    if ci is None or None in ci:
        return ""
    width = ci[1] - ci[0]
    digits = min(most, max(0, math.floor(-math.log10(width / 40)))) if width > 0 else most
    return f"[{ci[0]:.{digits}f}, {ci[1]:.{digits}f}]"


def number(value, digits=4, sign=""):
    return "" if value is None else f"{value:{sign}.{digits}f}"


def loss_of(record):
    """A run's loss: on whole documents, or as training logged it."""
    parts = record.get("decomposition")
    return parts[0]["loss"] if parts else record["logged_loss"]


def side_loss(analysis, group):
    """Mean loss over a group's seeds, or None."""
    names = next(g["runs"] for g in analysis["groups"] if g["name"] == group)
    found = [loss_of(r) for r in analysis["runs"] if r["name"] in names]
    return None if None in found else statistics.fmean(found)


def featured(analysis):
    """The runs whose insides are drawn: the only one or two, or the pair nearest to the base."""
    runs = analysis["runs"]
    if analysis["contrasts"]:
        c = analysis["contrasts"][analysis["base"] or 0]
        first = [next(g["runs"][0] for g in analysis["groups"] if g["name"] == c[s]) for s in "ab"]
        return [r for name in first for r in runs if r["name"] == name]
    return runs[:2]


def main_contrasts(analysis):
    """The contrasts whose regions are shown: the base pair at two budgets, or the only one."""
    if "tokens" in analysis["families"]:
        found = family(analysis, "tokens")
    else:
        found = analysis["contrasts"][analysis["base"] or 0 :][:1]
    return [c for c in found if "cells" in c][-2:]


def family(analysis, facet):
    """The contrasts of a family, by the value of what varies; 0 documents means all of them."""
    found = [analysis["contrasts"][i] for i in analysis["families"][facet]]
    if facet == "optimizer":
        return sorted(found, key=lambda c: facet_value(c, facet), reverse=True)  # muon first
    return sorted(found, key=lambda c: facet_value(c, facet) or math.inf)


def study_difference(analysis, contrast):
    """The study's figure for a contrast, if ours is what theirs is: of the base pair's SAN."""
    s, base = contrast["settings"], contrast["settings"]
    if analysis["base"] is not None:
        base = analysis["contrasts"][analysis["base"]]["settings"]
    keys = ["use_ffn", "tokens", "dataset", "n_embd", "n_layer", "residual", "norm", "qk_norm",
            "post_norm", "optimizer", "max_docs"]
    if contrast["kind"] == "variant":
        keys.remove(contrast["what"].split("=")[0])
    same = all(s.get(k) == base.get(k) for k in keys) and not s["use_ffn"]
    return STUDY.get(contrast["kind"], {}).get(contrast["what"]) if same else None


def facet_value(contrast, facet):
    s = contrast["settings"]
    return s["n_embd"] if facet == "size" else s[facet]


def inside(analysis, group):
    """Non-embedding parameters of a group's runs."""
    first = next(g["runs"][0] for g in analysis["groups"] if g["name"] == group)
    return next(r["params_non_embedding"] for r in analysis["runs"] if r["name"] == first)


def short(value):
    """A number of tokens or documents as people say it; other values as they are."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if isinstance(value, (int, float)) and value >= size:
            return f"{value / size:.3g}{unit}"
    return "all" if value == 0 else str(value)


def study_regions(contrast):
    """The study's differences by region, for a pair on documents that have these regions."""
    regions = {x["region"] for x in contrast["cells"]}
    return STUDY["regions"] if contrast["kind"] == "pair" and "query" in regions else {}


def depth_ladder(analysis):
    """{residual: {layers: loss}} of attention-only runs that differ in depth at like parameters."""
    runs = [r for r in analysis["runs"] if r["arm"] == "SAN" and loss_of(r) is not None]
    alike = ("dataset", "tokens")
    rest = [k for k in (runs[0]["settings"] if runs else ()) if k not in
            ("n_layer", "n_embd", "n_head", "n_kv_head", "residual", "muon_lr", "adam_lr")]
    families = {}
    for r in runs:
        key = tuple(r[k] for k in alike), tuple(r["settings"][k] for k in rest)
        families.setdefault(key, []).append(r)
    for members in families.values():
        middle = statistics.median(r["params_non_embedding"] for r in members)
        near = [r for r in members if 0.85 < r["params_non_embedding"] / middle < 1.18]
        if len({r["settings"]["n_layer"] for r in near}) > 1:
            out = {}
            for r in sorted(near, key=lambda r: r["settings"]["n_layer"]):
                line = out.setdefault(r["settings"]["residual"], {})
                line.setdefault(r["settings"]["n_layer"], []).append(loss_of(r))
            return {k: {n: statistics.fmean(v) for n, v in line.items()} for k, line in out.items()}
    return {}


# -----------------------------------------------------------------------------
# Tables


def table(header, rows):
    """A markdown table with aligned columns; numbers to the right."""
    rows = [["" if c is None else str(c) for c in row] for row in rows]
    widths = [max(2, *map(len, column)) for column in zip(header, *rows)]
    right = [all(re.fullmatch(r"[-+\d.,%]*", r[i]) for r in rows) for i in range(len(header))]
    line = ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right)]
    return "\n".join("| " + " | ".join(c.rjust(w) if r else c.ljust(w)
                                       for c, w, r in zip(row, widths, right)) + " |"
                     for row in (header, line, *rows))


def run_tables(a):
    rows = []
    for r in a["runs"]:
        h = r.get("held_out", {})
        name = r["name"] + " (diverged)" * (r["status"] == "diverged")
        rows.append([name, r["arm"], r["settings"]["n_layer"], r["settings"]["n_embd"],
                     f"{r['params']:,}", f"{r['params_non_embedding']:,}",
                     f"{r['flops_per_token']['dense'] / 1e6:.1f}", f"{r['tokens'] / 1e6:.1f}",
                     number(r["logged_loss"]), number(h.get("loss")), spread(h.get("loss_ci")),
                     number(h.get("bits_per_byte")), spread(h.get("bits_per_byte_ci"))])
    return table(["run", "arm", "L", "d", "parameters", "non-embed.", "MFLOP/token", "M tokens",
                  "logged loss", "loss", "95 %", "bits/byte", "95 %"], rows)


def contrast_table(a):
    rows = []
    if not a["contrasts"]:
        return ""
    for c in a["contrasts"]:
        losses = [side_loss(a, c[s]) for s in "ab"]
        delta = c.get("delta", None if None in losses else losses[0] - losses[1])
        what = AXES[c["what"]] if c["kind"] == "pair" else c["what"]
        if c["kind"] == "pair":
            what += " (FFN/SAN " + ", ".join(f"{k} {v:.2f}" for k, v in c["ratios"].items()) + ")"
        rows.append([what, c["a"], c["b"], *map(number, losses), number(delta, sign="+"),
                     spread(c.get("ci")), c.get("verdict", "no data: from the logs"),
                     number(study_difference(a, c), sign="+")])
    return table(["contrast", "a", "b", "loss a", "loss b", "a - b", "95 %", "verdict",
                  "study's a - b"], rows)


def seeds_table(a):
    rows = []
    for c in a["contrasts"]:
        for side, name in zip(c.get("sides", ()), (c["a"], c["b"])):
            if len(side) > 1:
                values = [s["loss"] for s in side]
                rows.append([name, statistics.fmean(values), statistics.stdev(values),
                             ", ".join(f"{s['seed']}: {s['loss']:.4f}" for s in side)])
        if len(c["paired"]) > 1:
            values = [p["delta"] for p in c["paired"]]
            rows.append([f"{c['a']} - {c['b']}", statistics.fmean(values), statistics.stdev(values),
                         ", ".join(f"{p['seed']}: {p['delta']:+.4f}" for p in c["paired"])])
    unique = {row[0]: [row[0], f"{row[1]:.4f}", f"{row[2]:.4f}", row[3]] for row in rows}
    return table(["seeds of", "mean", "std (n - 1)", "each"], unique.values()) if rows else ""


def prediction_tables(a):
    rows, told = [], []
    for p in a.get("predictions", ()):
        if p.get("history"):
            told.append([p["id"], p["statement"], p["outcome"]])
            continue
        bounds = [f"{k} {p[k]}" for k in ("low", "high", "expect") if k in p]
        bounds += ["above the others"] * ("over" in p)
        verdict = p["verdict"] + " (after the fact)" * p["late"]
        rows.append([p["id"], p["statement"], ", ".join(bounds), number(p["value"], sign="+"),
                     spread(p["interval"]), number(p["floor"]),
                     f"{verdict}: {p['why']}" if p["why"] else verdict, p["registered"]])
    text = [table(["id", "statement", "bounds", "value", "interval, floor included", "floor",
                   "verdict", "fixed (UTC)"], rows)] * bool(rows)
    text += [table(["the study's", "statement", "outcome, theirs"], told)] * bool(told)
    return "\n\n".join(text)


def region_tables(a):
    text = []
    for c in main_contrasts(a):
        regions = [x for x in c["cells"] if x["exercise"] == "all"]
        theirs = study_regions(c)
        text.append(f"{c['a']} - {c['b']} at {c['tokens'] / 1e6:.1f}M tokens:\n\n" + table(
            ["region", "share", "a - b", "95 %", "share x (a - b)",
             *(f"study at {k}" for k in theirs)],
            [[x["region"], f"{x['share']:.1%}", number(x["delta"], sign="+"), spread(x["ci"]),
              number(x["weighted"], 5, "+"),
              *(number(v.get(x["region"]), sign="+") for v in theirs.values())] for x in regions]))
        total = sum(x["weighted"] for x in regions[1:])
        text[-1] += (f"\n\nShares times differences sum to {total:+.6f}; the difference of the "
                     f"totals is {c['delta']:+.6f}.")
        exercises = list(dict.fromkeys(x["exercise"] for x in c["cells"]))
        cell = {(x["exercise"], x["region"]): f"{x['delta']:+.4f} {spread(x['ci'])}"
                for x in c["cells"]}
        names = [x["region"] for x in regions if x["region"] != "other"]
        text.append(table(["exercise", *names],
                          [[e, *(cell.get((e, r)) for r in names)] for e in exercises]))
    return "\n\n".join(text)


def decomposition_tables(a):
    text = []
    for r in featured(a):
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
    for facet in a["families"]:
        rows = [["ours", short(facet_value(c, facet)), number(side_loss(a, c["a"])),
                 number(side_loss(a, c["b"])), number(c.get("delta"), sign="+"),
                 spread(c.get("ci"))] for c in family(a, facet)]
        rows += [["study", label, number(s), number(f), number(d, sign="+"), ""]
                 for label, _, s, f, d in STUDY[facet]]
        text.append(f"{FACETS[facet]} ({UNITS[facet]}):\n\n" + table(
            ["whose", facet, "SAN", "FFN", "SAN - FFN", "95 %"], rows))
    return "\n\n".join(text)


def depth_table(a):
    found = depth_ladder(a)
    rows = [[whose, residual, layers, number(loss)] for whose, lines in
            (("ours", found), ("study", STUDY["depth"]))
            for residual, points in lines.items() for layers, loss in points.items()]
    return table(["whose", "residual", "layers", "loss"], rows) if found else ""


def probe_tables(a):
    near, conflict = [], []
    for r in a["runs"]:
        p = r.get("probes", {})
        near += [[r["name"], q["distance"], f"{q['tokens']:.0f}", f"{q['exact']['mean']:.2f}",
                  spread(q["exact"]["ci"], 2), f"{q['loss']['mean']:.3f}",
                  spread(q["loss"]["ci"], 3)] for q in p.get("retrieval", [])]
        if c := p.get("conflict"):
            conflict += [[r["name"], text, f"{c['passage_' + k]['mean']:.2f}",
                          f"{c['world_' + k]['mean']:.2f}", f"{c['log_odds_' + k]['mean']:+.3f}",
                          spread(c["log_odds_" + k]["ci"], 3)]
                         for k, text in (("with", "passage contradicts"),
                                         ("without", "question alone"))]
    if not near:
        return ""
    text = [table(["retrieval", "sentences", "tokens", "right of 4", "95 %", "-log p", "95 %"],
                  near)]
    if conflict:
        text.append(table(["conflict", "asked", "from passage", "from weights", "log-odds", "95 %"],
                          conflict))
    return "\n\n".join(text)


def spectra_table(a):
    rows = []
    for r in a["runs"]:
        steps = r["spectra"] if r in featured(a) else r["spectra"][-1:]
        for m in steps:
            rows += [[r["name"], m["step"], kind,
                      *(f"{statistics.fmean(v[k]):.{d}f} +- {statistics.pstdev(v[k]):.{d}f}"
                        for k, d in (("stable_rank", 1), ("effective_rank", 1), ("top", 3)))]
                     for kind, v in m["matrices"].items()]
    theirs = "; ".join(f"{k}: " + ", ".join(f"{m} {v}" for m, v in row.items())
                       for k, row in STUDY["spectra"].items())
    return table(["run", "step", "matrix", "stable rank", "effective rank", "top value"], rows) + (
        f"\n\nMean +- std over layers. The study's stable ranks, theirs, at d 512: {theirs}.")


def rank_table(a):
    rows = [[r["name"], f"{r['rank']['lowest']:.1f}", r["rank"]["width"], r["rank"]["lowest_layer"],
             " ".join(f"{v:.0f}" for v in r["rank"]["by_layer"])] for r in a["runs"] if "rank" in r]
    if not rows:
        return ""
    header = ["run", "lowest", "of", "at layer", "from the embedding to the last layer"]
    return table(header, rows) + (
        "\n\nThe study's, theirs: never below 173 of 512 at 20 layers.")


def gate_table(a):
    rows = [[r["name"], part, " ".join(f"{v:.3f}" for v in values)] for r in a["runs"] if r["gates"]
            for part, values in r["gates"]["now"].items()]
    return table(["run", "sublayer", "scale, first to last layer"], rows) if rows else ""


def report(a, pictures, brief=False):
    """report.md as text: a table and a picture for all that the analysis holds. brief: the tables
    of the whole set only, without those of single runs."""
    text = ["# " + ", ".join(g["name"] for g in a["groups"])]
    for h in a["held_out"]:
        text.append(f"{h['dataset']}: {h['rows']:,} held-out rows of {h['block_size']} tokens, and "
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
                ("predictions", "Predictions", prediction_tables),
                ("regions", "Where the difference is", region_tables),
                ("families", "Families of pairs", family_tables), ("depth", "Depth", depth_table),
                ("decomposition", "Where the loss is", decomposition_tables),
                ("probes", "Probes", probe_tables), ("spectra", "Spectra", spectra_table),
                ("gates", "Gates", gate_table), ("rank", "Rank of the stream", rank_table))
    for key, title, function in sections[: 8 if brief else None]:
        body = function(a) if function else ""
        picture = [f"![{pictures[key][1]}]({pictures[key][0]})", pictures[key][1]] \
            if key in pictures else []
        if body or picture:
            text += [f"## {title}"] * bool(title) + [body] * bool(body) + picture
    return "\n\n".join(t for t in text if t) + "\n"
