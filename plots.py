"""The pictures of an analysis. Draws from analysis.json alone.

    pictures = draw(analysis, folder)      # writes PNGs, returns {section: (file, caption)}

Blue is attention only and vermilion has feed-forward everywhere (Okabe and Ito's colour-blind safe
set). Hollow grey or white marks are the study's own figures, arXiv:2607.18363, never ours.
"""

import itertools
import math
import statistics

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from report import (AXES, FACETS, STUDY, UNITS, depth_ladder, facet_value, family, featured, inside,
                    main_contrasts, short, side_loss, study_difference, study_regions)

COLOUR = {"SAN": "#0072B2", "FFN": "#D55E00"}
GREY, PALE = "#5a5a5a", "#c8c8c8"
DASHES = ("-", "--", ":", "-.")
MATRICES = {"q": "$W_q$", "k": "$W_k$", "v": "$W_v$", "o": "$W_o$", "gate": "$W_{gate}$",
            "up": "$W_{up}$", "down": "$W_{down}$"}  # fmt: skip
MEASURES = {"stable_rank": "stable rank", "effective_rank": "effective rank",
            "top": "largest\nsingular value"}  # fmt: skip
matplotlib.rcParams.update({
    "font.size": 10, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY,
    "xtick.color": GREY, "ytick.color": GREY, "axes.labelcolor": GREY, "axes.grid": True,
    "grid.color": "#ececec", "axes.axisbelow": True, "figure.constrained_layout.use": True,
})  # fmt: skip


# -----------------------------------------------------------------------------
# Pictures


def canvas(rows, columns, width, height, **options):
    figure = Figure(figsize=(width, height), dpi=200)
    FigureCanvasAgg(figure)  # no display, whatever MPLBACKEND says
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def styles(runs):
    """{run: (colour, dash)}: colour tells the arm, dashes tell runs of one arm apart."""
    seen, out = {"SAN": 0, "FFN": 0}, {}
    for r in runs:
        out[r["name"]] = COLOUR[r["arm"]], DASHES[seen[r["arm"]] % len(DASHES)]
        seen[r["arm"]] += 1
    return out


def label_ends(ax, ends, gap=0.055):
    """Names right of the picture at their lines' ends, moved apart where they would collide."""
    low, high = ax.get_ylim()
    at = -math.inf
    for y, text, colour in sorted(ends):
        at = max(min(y, high), at + gap * (high - low))
        ax.text(1.01, at, text, transform=ax.get_yaxis_transform(), color=colour, va="center",
                fontsize=9)


def draw_curves(a):
    runs = {r["name"]: r for r in a["runs"] if len(r["curve"]["tokens"]) > 1}
    groups = [(g["name"], [runs[n] for n in g["runs"] if n in runs]) for g in a["groups"]]
    groups = [(name, members) for name, members in groups if members]
    if not groups:
        return None
    figure, axes = canvas(1, 2, 10, 4.3, width_ratios=(2, 3))
    look = styles([members[0] | {"name": name} for name, members in groups])
    end = max(r["curve"]["tokens"][-1] for r in runs.values()) / 1e6
    ends, late = [], []
    for name, members in groups:
        for r in members:
            x, y = [t / 1e6 for t in r["curve"]["tokens"]], r["curve"]["loss"]
            for ax in axes[0]:
                ax.plot(x, y, color=look[name][0], ls=look[name][1], lw=1.5, marker=".", ms=4)
            late += [v for t, v in zip(x, y) if t >= 0.5 * end]
        final = statistics.fmean(r["curve"]["loss"][-1] for r in members)
        seeds = f" ({len(members)} seeds)" if len(members) > 1 else ""
        ends.append((final, f"{name}  {final:.4f}{seeds}", look[name][0]))
    axes[0, 0].set_yscale("log")
    axes[0, 0].yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    axes[0, 0].yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes[0, 0].set_yticks([t for t in (0.5, 1, 2, 3, 5, 7, 10) if min(late or [1]) / 1.2 < t < 8])
    axes[0, 0].set(xlabel="training tokens, millions", ylabel="held-out loss, nats per token",
                   title="All of training, log scale")
    # A run that failed would press the others together: it is drawn in the left picture alone.
    near = 1.5 * statistics.median(e[0] for e in ends)
    late = [v for v in late if v < near] or [e[0] for e in ends]
    low, high = min(late), max(late)
    pad = 0.06 * (high - low) or 0.01
    axes[0, 1].set(xlim=(0.5 * end, 1.01 * end), ylim=(low - pad, high + pad),
                   xlabel="training tokens, millions", title="The second half")
    label_ends(axes[0, 1], ends)
    best = min(ends)
    figure.suptitle(f"Held-out loss: {best[1].split()[0]} ends " +
                    ("lowest, " if len(ends) > 1 else "") + f"at {best[0]:.3f} nats per token",
                    x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure, "Held-out loss as training logged it. Blue: attention only. Vermilion: with FFN."


def draw_spectra(a):
    runs = [r for r in featured(a) if r["spectra"] and r["spectra"][-1]["matrices"]]
    if not runs:
        return None
    kinds = [k for k in MATRICES if any(k in r["spectra"][-1]["matrices"] for r in runs)]
    figure, axes = canvas(3, len(kinds), 1.2 + 1.9 * len(kinds), 6.2, sharex=True, sharey="row")
    look = styles(runs)
    for (i, measure), (j, kind) in itertools.product(enumerate(MEASURES), enumerate(kinds)):
        ax = axes[i, j]
        for r in runs:
            colour, dash = look[r["name"]]
            steps = [m for m in r["spectra"] if kind in m["matrices"]]
            x = [100 * m["step"] / max(1, r["max_steps"] or r["step"]) for m in steps]
            by_layer = [m["matrices"][kind][measure] for m in steps]
            mean = [statistics.fmean(v) for v in by_layer]
            std = [statistics.stdev(v) if len(v) > 1 else 0 for v in by_layer]
            ax.plot(x, mean, color=colour, ls=dash, marker="o", ms=3)
            ax.fill_between(x, [m - s for m, s in zip(mean, std)],
                            [m + s for m, s in zip(mean, std)], color=colour, alpha=0.15, lw=0)
        if i == 0:
            ax.set_title(MATRICES[kind])
        if j == 0:
            ax.set_ylabel(MEASURES[measure])
    for ax in axes[:, 0]:
        ax.set_ylim(0, 1.05 * ax.get_ylim()[1])  # once all are drawn: rows share their scale
    figure.supxlabel("training done, %", color=GREY, fontsize=10)
    head(figure, "How the spectra move: " + first_to_settle(runs[0], kinds), runs, look)
    return figure, ("Singular values of the block matrices at the milestones: mean over layers, "
                    "band one standard deviation.")


def first_to_settle(record, kinds):
    """One sentence on which matrix still grew in the second half of training."""
    rise = {}
    for kind in kinds:
        tops = [(m["step"], statistics.fmean(m["matrices"][kind]["top"]))
                for m in record["spectra"] if kind in m["matrices"]]
        if len(tops) >= 3:
            middle = next(top for step, top in tops if 2 * step >= tops[-1][0])
            rise[kind] = tops[-1][1] / max(middle, 1e-30) - 1
    if not rise:
        return f"{record['name']} at one step" if len(record["spectra"]) < 2 else record["name"]
    most, least = max(rise, key=rise.get), min(rise, key=rise.get)
    return (f"largest singular values in {record['name']}'s second half, from "
            f"{rise[least]:+.0%} ({MATRICES[least]}) to {rise[most]:+.0%} ({MATRICES[most]})")


def head(figure, title, runs, look):
    """A title over the whole figure, and the runs' names in their colours beneath it."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    lines = [matplotlib.lines.Line2D([], [], color=look[r["name"]][0], ls=look[r["name"]][1])
             for r in runs]
    figure.legend(lines, [r["name"] for r in runs], loc="outside lower left", ncols=len(runs),
                  frameon=False, fontsize=9)


def draw_gates(a):
    runs = [r for r in featured(a) if r["gates"]]
    if not runs:
        return None
    maps = [(r, part) for r in runs for part in r["gates"]["log"] if r["gates"]["log_tokens"]]
    figure, axes = canvas(1, 1 + len(maps), 4 + 3.6 * len(maps), 3.8)
    ax, look = axes[0, 0], styles(runs)
    for r in runs:
        for part, values in r["gates"]["now"].items():
            layers = range(1, len(values) + 1)
            ax.plot(layers, values, color=look[r["name"]][0], marker="os"[part == "ffn"], ms=4,
                    ls="--" if part == "ffn" else "-", label=f"{r['name']}, {part}")
    ax.set(xlabel="layer", ylabel="scale of the sublayer", title="At the end, by layer")
    ax.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    ax.legend(frameon=False, fontsize=8)
    values = [v for r, part in maps for row in r["gates"]["log"][part] for v in row]
    for (r, part), ax in zip(maps, axes[0, 1:]):
        layers, times = len(r["gates"]["now"][part]), r["gates"]["log_tokens"]
        image = ax.imshow(list(zip(*r["gates"]["log"][part])), aspect="auto", origin="lower",
                          interpolation="nearest",
                          cmap="cividis", vmin=min(values), vmax=max(values),
                          extent=(times[0] / 1e6, times[-1] / 1e6, 0.5, layers + 0.5))
        ax.grid(False)
        ax.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        ax.set(xlabel="training tokens, millions", ylabel="layer", title=f"{r['name']}, {part}")
    if maps:
        figure.colorbar(image, ax=axes[0, -1], label="scale")
    r = runs[0]
    part, now = next(iter(r["gates"]["now"].items()))
    top = now.index(max(now)) + 1
    figure.suptitle(f"Gates: {r['name']}'s layer {top} is open widest ({max(now):.2f}), layer "
                    f"{now.index(min(now)) + 1} least ({min(now):.2f})", x=0.01, ha="left",
                    fontsize=11, fontweight="bold")
    return figure, "Scale of each sublayer: sigmoid of the gate, or rezero's scalar."


def draw_rank(a):
    runs = [r for r in a["runs"] if "rank" in r]
    if not runs:
        return None
    runs = [r for r in featured(a) if "rank" in r] or runs[:2]
    figure, axes = canvas(1, 1, 7, 4)
    ax, look = axes[0, 0], styles(runs)
    for r in runs:
        rank, low = r["rank"]["by_layer"], r["rank"]["lowest_layer"]
        colour, dash = look[r["name"]]
        x = [100 * i / (len(rank) - 1) for i in range(len(rank))]
        ax.plot(x, rank, color=colour, ls=dash, marker="o", ms=4, label=r["name"])
        above = len(runs) > 1 and rank[low] == max(min(o["rank"]["by_layer"]) for o in runs)
        ax.annotate(f"layer {low}: {rank[low]:.0f}", (x[low], rank[low]), color=colour, fontsize=9,
                    xytext=(0, 8 if above else -8), textcoords="offset points",
                    va="bottom" if above else "top", ha="center")
    ax.axhline(runs[0]["rank"]["width"], color=PALE, lw=1)
    ax.text(0, runs[0]["rank"]["width"], "width of the stream", color=GREY, va="bottom", fontsize=9)
    ax.set_ylim(0, 1.12 * max(r["rank"]["width"] for r in runs))
    ax.set(xlabel="depth, % of layers (0: embedding)", ylabel="effective rank",
           title="Lowest effective rank: " + ", ".join(
               f"{r['rank']['lowest']:.0f} ({r['name']})" for r in runs))
    ax.legend(frameon=False, loc="lower right")
    return figure, "Effective rank of the centred stream after each block, on held-out rows."


def draw_decomposition(a):
    runs = [r for r in featured(a) if "decomposition" in r]
    if not runs:
        return None
    runs = [r for r in runs if r["dataset"] == runs[0]["dataset"]]  # others have other cells
    names = [(c["region"], c["exercise"]) for c in runs[0]["decomposition"]
             if c["loss_share"] > 0.003 and "all" not in (c["region"], c["exercise"])]
    figure, axes = canvas(1, 1, 8, 1.6 + 0.33 * len(names))
    ax, thick = axes[0, 0], 0.8 / len(runs)
    for i, r in enumerate(runs):
        cells = {(c["region"], c["exercise"]): c for c in r["decomposition"]}
        for y, name in enumerate(names):
            c, at = cells[name], y + (i - (len(runs) - 1) / 2) * thick
            floor = c.get("floor") or 0
            ax.barh(at, floor, thick * 0.92, color=PALE, label="floor" if i + y == 0 else None)
            ax.barh(at, c["loss"] - floor, thick * 0.92, left=floor, color=COLOUR[r["arm"]],
                    alpha=1 - 0.35 * (i and runs[0]["arm"] == r["arm"]),
                    label=f"{r['name']}" if y == 0 else None)
    first = {(c["region"], c["exercise"]): c for c in runs[0]["decomposition"]}
    ax.set_yticks(range(len(names)), [f"{e}, {r} ({100 * first[r, e]['share']:.0f} %)"
                                      for r, e in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
    key = "excess" if "excess" in runs[0]["decomposition"][0] else "loss"
    if len(runs) == 2:
        other = {(c["region"], c["exercise"]): c["loss"] for c in runs[1]["decomposition"]}
        worst = max(names, key=lambda n: first[n]["share"] * abs(first[n]["loss"] - other[n]))
        ax.set_title(f"They differ most in {worst[1]}, {worst[0]}: {first[worst]['loss']:.2f} and "
                     f"{other[worst]:.2f}")
    else:
        worst = max(names, key=lambda n: first[n]["share"] * first[n][key])
        share = first[worst]["share"] * first[worst][key] / runs[0]["decomposition"][0][key]
        ax.set_title(f"{runs[0]['name']}: {share:.0%} of the {key} is {worst[1]}, {worst[0]}")
    ax.set_xlabel("nats per token" + ("; grey: the generator's own entropy, which no model passes"
                                      if key == "excess" else ""))
    handles, labels = ax.get_legend_handles_labels()
    keep = [i for i, text in enumerate(labels) if text != "floor" or key == "excess"]
    figure.legend([handles[i] for i in keep], [labels[i] for i in keep], loc="outside lower left",
                  ncols=3, frameon=False, fontsize=9)
    return figure, "Loss by exercise and region of the target, with its share of the tokens."


def forest(ax, rows, floor):
    """Differences with intervals: rows of (label, delta, ci, colour, [(study's label, delta)])."""
    ax.axvspan(-2 * floor, 2 * floor, color="#f0f0f0", zorder=0)
    ax.axvline(0, color=GREY, lw=0.8)
    for y, (_, delta, ci, colour, theirs) in enumerate(rows):
        if ci and None not in ci:
            ax.plot(ci, [y, y], color=colour, lw=2.2, solid_capstyle="butt")
        ax.plot(delta, y, "o", color=colour, ms=5)
        for mark, (_, value) in zip("Ds", theirs):
            ax.plot(value, y, mark, mfc="none", mec=GREY, ms=6)
    ax.set_yticks(range(len(rows)), [r[0] for r in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)


def side_note(ax, left, right):
    for x, align, text in ((0, "left", f"\u2190 {left}"), (1, "right", f"{right} \u2192")):
        ax.text(x, 1.005, text, transform=ax.transAxes, ha=align, va="bottom", color=GREY,
                fontsize=9)


def draw_regions(a):
    found = main_contrasts(a)
    if not found:
        return None
    figure, axes = canvas(1, len(found), 4.2 + 3.6 * len(found),
                          2.2 + 0.23 * len(found[0]["cells"]), sharey=True, sharex=True)
    for ax, c in zip(axes[0], found):
        cells = [x for x in c["cells"] if x["share"] > 0.002
                 and (x["region"] != "other" or x["exercise"] == "all")]
        pair = c["kind"] == "pair"
        names = ("SAN", "FFN") if pair else (c["a"], c["b"])
        tints = (COLOUR["SAN"], COLOUR["FFN"]) if pair else (GREY, GREY)
        rows = []
        for x in cells:
            theirs = [(k, v[x["region"]]) for k, v in study_regions(c).items()
                      if x["exercise"] == "all" and x["region"] in v]
            label = ", ".join(x[k] for k in ("exercise", "region") if x[k] != "all") or "everything"
            clear = x["ci"][0] > 0 or x["ci"][1] < 0
            rows.append((label, x["delta"], x["ci"],
                         tints[x["delta"] > 0] if clear else GREY, theirs))
        forest(ax, rows, a["noise_floor"]["value"])
        side_note(ax, f"{names[0]} better", f"{names[1]} better")
        ax.set_xlabel("difference, nats per token" +
                      (f"\nat {c['tokens'] / 1e6:.1f}M training tokens" if len(found) > 1 else ""))
        if any(r[4] for r in rows):
            ax.set_xlabel(ax.get_xlabel() +
                          "\nhollow: the study's, 31B (diamond) and 105B (square)")
        for tick, x in zip(ax.get_yticklabels(), cells):
            tick.set_fontweight("bold" if x["exercise"] == "all" else "normal")
    last = found[-1]
    part = [x for x in last["cells"] if x["region"] != "all" and x["exercise"] != "all"]
    top = max(part, key=lambda x: abs(x["weighted"]))
    figure.suptitle(f"{last['a']} - {last['b']}: {top['exercise']}, {top['region']} "
                    f"weighs most ({top['weighted']:+.3f} of {last['delta']:+.3f})",
                    x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure, ("Difference by region and exercise, 95 % paired bootstrap over documents; grey "
                    "band: twice the noise floor.")


def draw_contrasts(a):
    found = [c for c in a["contrasts"] if "delta" in c]
    if len(found) < 2:
        return None
    rows = []
    for c in found:
        pair = c["kind"] == "pair"
        theirs = study_difference(a, c)
        colour = {True: COLOUR["FFN"], False: COLOUR["SAN"]}[c["delta"] > 0] if pair else GREY
        what = AXES[c["what"]] if pair else c["what"]
        rows.append((f"{c['a']} - {c['b']}\n{what}", c["delta"], c["ci"], colour,
                     [("", theirs)] if theirs else []))
    figure, axes = canvas(1, 1, 8, 1.5 + 0.5 * len(rows))
    ax, floor = axes[0, 0], a["noise_floor"]["value"]
    forest(ax, rows, floor)
    for y, (c, row) in enumerate(zip(found, rows)):
        if len(c["paired"]) > 1:
            ax.plot([p["delta"] for p in c["paired"]], [y] * len(c["paired"]), "|", ms=10,
                    color=row[3])
    # From a tie to a failed run: linear within the noise, then logarithmic.
    unit = 10 ** math.ceil(math.log10(max(2 * floor, 1e-4)))
    ax.set_xscale("symlog", linthresh=unit, linscale=1.5)
    reach = max(abs(v) for x in ax.lines for v in x.get_xdata())
    marks = [unit * 10**i for i in range(8) if unit * 10**i <= reach]
    ticks = sorted([0.0] + [sign * m for m in marks for sign in (-1, 1)])
    ax.set_xticks(ticks, [f"{t:+g}" if t else "0" for t in ticks])
    ax.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    ax.set_xlim(*(v * 1.5 for v in ax.dataLim.intervalx))
    side_note(ax, "first better", "second better")
    ax.set_xlabel("difference, nats per token, log scale beyond the first marks\n"
                  "dot: mean over seeds; bars: each seed; hollow: the study's")
    top = max(found, key=lambda c: abs(c["delta"]))
    figure.suptitle(f"Largest difference: {top['a']} - {top['b']}, {top['delta']:+.3f} nats",
                    x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure, ("All contrasts: 95 % paired bootstrap over documents; grey band: twice the "
                    "noise floor.")


def draw_probes(a):
    runs = [r for r in a["runs"] if r.get("probes", {}).get("retrieval")]
    runs = [r for r in featured(a) if r in runs] or runs[:2]
    if not runs:
        return None
    both = all("conflict" in r["probes"] for r in runs)
    figure, axes = canvas(1, 2 + both, 8 + 3 * both, 3.9)
    look = styles(runs)
    for ax, key, text in ((axes[0, 0], "exact", "right among four"),
                          (axes[0, 1], "loss", "-log p of the value, nats")):
        for r in runs:
            rows, (colour, dash) = r["probes"]["retrieval"], look[r["name"]]
            x = [p["tokens"] for p in rows]
            ax.plot(x, [p[key]["mean"] for p in rows], color=colour, ls=dash, marker="o", ms=4)
            ax.fill_between(x, *zip(*(p[key]["ci"] for p in rows)), color=colour, alpha=0.15, lw=0)
        ax.set(xlabel="tokens between the fact and its question", ylabel=text)
        ax.set_ylim(0, 1.05 * ax.get_ylim()[1])
    axes[0, 0].set_ylim(0, 1.02)
    axes[0, 0].axhline(0.25, color=GREY, lw=0.8, ls=":")
    axes[0, 0].text(0, 0.24, "chance", color=GREY, va="top", fontsize=9)
    axes[0, 0].set_title("A fact told in the query", fontweight="normal")
    if both:
        ax = axes[0, 2]
        for i, r in enumerate(runs):
            for y, (key, filled) in enumerate((("with", True), ("without", False))):
                c = r["probes"]["conflict"][f"log_odds_{key}"]
                at = y + 0.18 * (i - (len(runs) - 1) / 2)
                colour = look[r["name"]][0]
                ax.plot(c["ci"], [at, at], color=colour, lw=2.2)
                ax.plot(c["mean"], at, "o", color=colour, mfc=colour if filled else "white", ms=6)
        ax.axvline(0, color=GREY, lw=0.8)
        ax.set_yticks([0, 1], ["passage\ncontradicts", "question\nalone"])
        ax.set_ylim(1.6, -0.6)
        ax.set(xlabel="log-odds, passage over weights, nats")
        side_note(ax, "from weights", "from passage")
    near = ", ".join(f"{r['name']} {r['probes']['retrieval'][0]['exact']['mean']:.0%} \u2192 "
                     f"{r['probes']['retrieval'][-1]['exact']['mean']:.0%}" for r in runs)
    head(figure, f"Retrieval from nearest to farthest: {near}", runs, look)
    return figure, "Probes with known answers, 95 % bootstrap over items."


def draw_families(a):
    """Both arms' loss along each facet that the pairs differ in, and beside it the study's own."""
    rows = []
    for facet in a["families"]:
        points = [(short(facet_value(c, facet)), inside(a, c["a"]), side_loss(a, c["a"]),
                   side_loss(a, c["b"]), c.get("delta")) for c in family(a, facet)]
        points = [p for p in points if None not in p]
        rows += [(facet, points)] * (len(points) > 1)
    if not rows:
        return None
    figure, axes = canvas(len(rows), 2, 9, 3.4 * len(rows))
    for (facet, ours), pair in zip(rows, axes):
        draw_family(pair[0], facet, ours, True)
        draw_family(pair[1], facet, STUDY[facet], False)
        pair[0].set_title(f"{FACETS[facet]}: SAN - FFN {ours[0][-1]:+.3f} to {ours[-1][-1]:+.3f}")
        pair[1].set_title("The study's own", color=GREY)
        pair[0].legend(frameon=False, fontsize=9)
    return figure, "Parameter-matched pairs along what varies; numbers: SAN - FFN. Right: theirs."


def draw_family(ax, facet, points, filled):
    """One panel: points of (label, non-embedding parameters, SAN, FFN, difference)."""
    x = [p[1] / 1e6 for p in points] if facet == "size" else list(range(len(points)))
    lines = [("SAN", 2), ("FFN", 3)] if None not in points[0] else [("", 4)]
    for arm, i in lines:
        colour = COLOUR.get(arm, GREY)
        ax.plot(x, [p[i] for p in points], color=colour, marker="o", ms=6, label=arm,
                mfc=colour if filled else "white")
    for at, p in zip(x, points):
        ax.annotate(f"{p[4]:+.3f}", (at, max(p[i] for _, i in lines)), xytext=(0, 7), ha="center",
                    textcoords="offset points", color=GREY, fontsize=9)
    ax.margins(0.15)
    ax.set(xlabel=UNITS[facet], ylabel="held-out loss, nats per token" if lines[0][0] else
           "SAN - FFN, nats per token")
    if facet == "size":
        ax.set_xscale("log")
        ax.minorticks_off()
        ax.set_xticks(x, [f"{v:.2g}" for v in x])
    else:
        ax.set_xticks(x, [p[0] for p in points])


def draw_depth(a):
    """Loss against depth at like parameters, attention-only arm."""
    found = depth_ladder(a)
    if not found:
        return None
    figure, axes = canvas(1, 2, 9, 3.8)
    for ax, lines, title in ((axes[0, 0], found, "Depth at like parameters"),
                             (axes[0, 1], STUDY["depth"], "The study's own")):
        for dash, (residual, points) in zip(DASHES, lines.items()):
            ax.plot(list(points), list(points.values()), color=COLOUR["SAN"], ls=dash, marker="o",
                    mfc=COLOUR["SAN"] if lines is found else "white", label=residual)
        ax.set(xlabel="attention layers", ylabel="held-out loss, nats per token", title=title)
        ax.legend(frameon=False)
        ax.margins(0.15)
    return figure, "Attention-only models of like size, by depth; right: the study's own."


SECTIONS = {"curves": draw_curves, "contrasts": draw_contrasts, "regions": draw_regions,
            "families": draw_families, "depth": draw_depth, "decomposition": draw_decomposition,
            "probes": draw_probes, "spectra": draw_spectra, "gates": draw_gates, "rank": draw_rank}


def draw(analysis, folder):
    """Write every picture that the analysis has numbers for; returns {section: (file, caption)}."""
    made = {}
    for section, function in SECTIONS.items():
        if drawn := function(analysis):
            figure, caption = drawn
            # No date and no version in the file: the same numbers give the same bytes.
            figure.savefig(folder / f"{section}.png", metadata={"Software": None})
            made[section] = f"{section}.png", caption
    return made
