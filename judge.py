"""Judges statements that were fixed before the runs: predictions.toml against an analysis.

The head of that file says what an entry holds and how it is judged. A run is of a config if its
folder has that name, or the name, _s and a seed. analyze.py uses this; it writes nothing.
"""

import difflib
import math
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path

from configurator import ConfigError
from dataset import REGIONS

# What each quantity needs and what it may have; all but those in KINDS are text.
KEYS = {"delta": ("a b", "region exercise low high"), "above": ("a b over", "region exercise"),
        "noise_floor": ("", "low high"), "diverges": ("a expect", ""), "history": ("outcome", "")}
KINDS = {"low": (float, int), "high": (float, int), "over": (list,), "expect": (bool,),
         "history": (bool,)}  # fmt: skip


class NotRun(Exception):
    """What a verdict lacks."""


def read(path):
    """The entries of a file, checked. Raises ConfigError."""
    name, seen = "", []
    try:
        import tomllib  # not in Python 3.10

        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        choose("table", next((k for k in found if k != "prediction"), "prediction"), ["prediction"])
        entries = found.get("prediction", [])
        if type(entries) is not list:
            raise ValueError("write [[prediction]], in double brackets, before each entry")
        for number, entry in enumerate(entries, 1):
            name = f" prediction {entry.get('id', number)}:"
            check(entry)
            if entry["id"] in seen:
                raise ValueError("its id is there twice")
            seen.append(entry["id"])
    except (OSError, ImportError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}:{name} {getattr(error, 'strerror', None) or error}") from error
    return entries


def check(entry):
    """Raises ValueError if an entry cannot be judged."""
    kind = "history" if entry.get("history") else entry.get("quantity")
    choose("quantity", kind, KEYS)
    needed = f"id statement {'quantity' * (kind != 'history')} {KEYS[kind][0]}".split()
    for key, value in entry.items():
        choose("key", key, [*needed, "reason", "history", *KEYS[kind][1].split()])
        if type(value) not in KINDS.get(key, (str,)):
            raise ValueError(f"{key} cannot be {value!r}")
    if missing := [key for key in needed if entry.get(key) in (None, [])]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    choose("region", entry.get("region", "all"), ("all", *REGIONS))
    if not entry.get("low", -math.inf) <= entry.get("high", math.inf):
        raise ValueError("low is above high")
    for other in others(entry):
        check(other)


def choose(what, word, known):
    if word not in known:
        near = difflib.get_close_matches(str(word), known, n=1) or [", ".join(known)]
        raise ValueError(f"no {what} is called {word}; did you mean {near[0]}?")


def others(entry):
    """The differences that an entry is said to be above, as entries."""
    own = {k: v for k, v in entry.items() if k != "over"} | {"quantity": "delta"}
    return [own | other for other in entry.get("over", ())]


def committed(path, entries):
    """{id: (Unix time, whether committed)}: since when each entry is what it is, by the file's time
    if no commit has it so. With a bound changed or dropped it is another entry."""
    import tomllib

    path = Path(path).resolve()
    times, same = {e["id"]: (int(path.stat().st_mtime), False) for e in entries}, entries
    git = {"cwd": path.parent, "capture_output": True, "check": True, "encoding": "utf-8"}
    try:
        log = subprocess.run(["git", "log", "--format=%H %ct", "--", path.name], **git).stdout
        for commit, seconds in map(str.split, log.splitlines()):
            text = subprocess.run(["git", "show", f"{commit}:./{path.name}"], **git).stdout
            old = tomllib.loads(text)["prediction"]
            same = [e for e in same if e in old]
            times |= {e["id"]: (int(seconds), True) for e in same}
    except (OSError, ValueError, KeyError, subprocess.CalledProcessError):
        pass  # no git, or the file was of another form: what is known by then stands
    return times


def runs_of(analysis, config):
    name = re.compile(re.escape(config) + r"(_s\d+)?(@\d+)?")  # analyze.py tells namesakes by @step
    return [r for r in analysis["runs"] if name.fullmatch(r["name"])]


def ended(analysis, config):
    """A config's runs. Raises NotRun if there is none, or one is not at its end."""
    found = runs_of(analysis, config)
    for run in found:
        if run["status"] == "unfinished":
            raise NotRun(f"{run['name']} is not at its end")
    if not found:
        raise NotRun(f"no run of {config}")
    return found


def difference(analysis, entry):
    """Mean a - b in the entry's cell, and its interval with the noise floor. Raises NotRun."""
    runs = ended(analysis, entry["a"]), ended(analysis, entry["b"])
    if lost := [r["name"] for side in runs for r in side if r["status"] == "diverged"]:
        raise NotRun(f"{lost[0]} diverged")
    names = [{r["name"] for r in side} for side in runs]
    groups = {g["name"]: set(g["runs"]) for g in analysis["groups"]}
    place = entry.get("region", "all"), entry.get("exercise", "all")
    for c in analysis["contrasts"]:
        sides = [groups[c["a"]], groups[c["b"]]]
        if names in (sides, sides[::-1]):
            cell = [x for x in c.get("cells", ()) if (x["region"], x["exercise"]) == place]
            if not cell or None in (ends := [*cell[0]["ci"], *cell[0]["each"]]):
                raise NotRun(f"no measured tokens: region {place[0]}, exercise {place[1]}")
            if not cell[0]["each"]:
                raise NotRun("no seed that both have")
            sign, floor = 1 if names == sides else -1, analysis["noise_floor"]["value"]
            ends = [sign * v for v in ends]
            return sign * cell[0]["delta"], [min(ends) - floor, max(ends) + floor]
    raise NotRun(f"{entry['a']} and {entry['b']} are no pair, or seeds of one are no twins")


def outcome(analysis, entry):
    """Verdict, value, interval and reason. Raises NotRun."""
    low, high, reason = entry.get("low", -math.inf), entry.get("high", math.inf), ""
    if entry["quantity"] == "diverges":
        runs = ended(analysis, entry["a"])
        curves = [[math.inf] * 2 if r["status"] == "diverged" else r["curve"]["loss"] for r in runs]
        if not all(curve[1:] for curve in curves):
            raise NotRun("no log of the losses")
        found = [curve[-1] >= curve[0] for curve in curves]
        right, reason = found.count(entry["expect"]), f"{sum(found)} of {len(found)} diverged"
        word = "confirmed" if right == len(found) else "undecided" if right else "falsified"
        return word, None, None, reason
    if entry["quantity"] == "noise_floor":
        value = analysis["noise_floor"]["value"]
        interval = [value, value]
        if not analysis["noise_floor"]["source"].startswith("measured"):
            raise NotRun("no norm=rms twin of a run")
    else:
        value, interval = difference(analysis, entry)
    least = low
    if rivals := [difference(analysis, other) for other in others(entry)]:
        least, low = (max(ends[i] for _, ends in rivals) for i in (0, 1))
        reason = "against " + ", ".join(f"{v:+.4f} [{e[0]:.4f}, {e[1]:.4f}]" for v, e in rivals)
    if interval[1] < least or interval[0] > high:
        return "falsified", value, interval, reason
    inside = low <= interval[0] and interval[1] <= high
    return "confirmed" if inside else "undecided", value, interval, reason


def registered(analysis, entry, seconds, is_committed):
    """In words, when the entry was fixed, and whether that was too late."""
    names = {e[k] for e in (entry, *others(entry)) for k in "ab" if k in e}
    runs = [r for name in names for r in runs_of(analysis, name)]
    if entry["quantity"] == "noise_floor":
        sides = {c[k] for c in analysis["contrasts"] if c["what"] == "norm=rms" for k in "ab"}
        names = {n for g in analysis["groups"] if g["name"] in sides for n in g["runs"]}
        runs = [r for r in analysis["runs"] if r["name"] in names]
    when = f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}"
    when = f"registered {when}" if is_committed else f"not committed, file of {when}"
    starts = [r["started"] for r in runs]
    if not starts or None in starts:
        return f"{when}, start of a run unknown" if starts else when, False
    late = seconds > min(datetime.fromisoformat(s).timestamp() for s in starts)
    return f"{when}, {'AFTER the run started' if late else 'before the runs'}", late


def judge(analysis, entries, times):
    """The entries with verdict, value, interval, noise floor, why, and when they were fixed."""
    found = []
    for entry in entries:
        found.append(dict(entry))
        if not entry.get("history"):
            try:
                judged = outcome(analysis, entry)
            except NotRun as error:
                judged = "not run", None, None, str(error)
            judged += registered(analysis, entry, *times[entry["id"]])
            found[-1] |= zip(("verdict", "value", "interval", "why", "registered", "late"), judged)
            found[-1]["floor"] = analysis["noise_floor"]["value"]
    return found
