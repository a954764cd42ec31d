"""Predictions: quantities, verdicts, what is refused, and whether they came before the runs."""
import os
import subprocess
from pathlib import Path

import pytest

import judge
from configurator import UserError

pytest.importorskip("tomllib")
FILE, START = Path(__file__).parents[1] / "predictions.toml", 1767312000
HEAD = "[[prediction]]\nid = 'x'\nstatement = 's'\n"


def run(name, status="done", last=1.0):
    return {"name": name, "status": status, "curve": {"loss": [6.0, last]},
            "started": "2026-01-02T00:00:00+00:00"}  # START


def cell(delta, region="all", exercise="all", each=(-0.01, 0.03)):
    return {"region": region, "exercise": exercise, "delta": delta,
            "each": [delta + v for v in each], "ci": [delta - 0.02, delta + 0.02]}


@pytest.fixture
def analysis():
    """Two seeds of a pair: intervals from delta - 0.02 to + 0.03, and 0.001 for the floor."""
    names = {"san": ["san", "san_s43"], "ffn": ["ffn", "ffn_s43"], "rms": ["rms"], "deep": ["deep"]}
    cells = [cell(0.1), cell(0.3, "query"), cell(-0.1, "answer", "rag"), cell(0.29, "text"),
             cell(0.0, "trace", each=())]
    return {"groups": [{"name": k, "runs": v} for k, v in names.items()],
            "runs": [*(run(n) for members in names.values() for n in members),
                     run("lost", "diverged"), run("worse", last=8.3), run("early", "unfinished"),
                     run("san_web")],
            "contrasts": [{"what": "params", "a": "san", "b": "ffn", "cells": cells},
                          {"what": "norm=rms", "a": "rms", "b": "san", "cells": [cell(0.001)]}],
            "noise_floor": {"value": 0.001, "source": "measured: rms / zcrms"}}


def judged(analysis, quantity="delta", **entry):
    sides = {} if quantity in ("noise_floor", "diverges") else {"a": "san", "b": "ffn"}
    entry = {"id": "x", "statement": "s", "quantity": quantity} | sides | entry
    judge.check(entry)
    return judge.judge(analysis, [entry], {"x": (0, True)})[0]


def word(*args, **entry):
    return judged(*args, **entry)["verdict"]


def test_delta(analysis):
    found = judged(analysis, low=0.0789, high=0.1311)
    assert (found["verdict"], found["floor"]) == ("confirmed", 0.001)
    assert found["interval"] == pytest.approx([0.079, 0.131])
    for bound in ({"high": 0.1305}, {"low": 0.0795}):  # by the floor alone
        assert word(analysis, **bound) == "undecided"
    assert word(analysis, high=0.07) == word(analysis, low=0.14) == "falsified"
    assert word(analysis, high=0, region="answer", exercise="rag") == "confirmed"
    found = judged(analysis, a="ffn", b="san", low=-0.14, high=-0.07)  # the other way round
    assert (found["verdict"], found["value"]) == ("confirmed", -0.1)
    for why, entry in {"no run of none": {"a": "none"}, "lost diverged": {"a": "lost"},
                       "early is not at its end": {"b": "early"}, "no pair": {"b": "deep"},
                       "no seed": {"region": "trace"}, "no measured": {"exercise": "edit"}}.items():
        found = judged(analysis, high=1, **entry)
        assert found["verdict"] == "not run" and why in found["why"]
    analysis["groups"][0]["runs"].pop()  # a seed that was trained otherwise
    assert word(analysis, high=1) == "not run"


def test_other_quantities(analysis):
    rag = {"region": "answer", "exercise": "rag"}
    for region, over, answer in (("query", [{"region": "all"}, rag], "confirmed"),
                                 ("all", [{"region": "query"}, rag], "falsified"),
                                 ("query", [{"region": "text"}], "undecided"),
                                 ("all", [{"b": "none"}], "not run")):
        assert word(analysis, "above", region=region, over=over) == answer
    for a, expect, answer in (("lost", True, "confirmed"), ("worse", False, "falsified"),
                              ("san", False, "confirmed"), ("early", True, "not run")):
        assert word(analysis, "diverges", a=a, expect=expect) == answer
    analysis["runs"][1] = run("san_s43", "diverged")
    assert word(analysis, "diverges", a="san", expect=False) == "undecided"
    assert word(analysis, "noise_floor", high=0.001) == "confirmed"
    assert word(analysis, "noise_floor", low=0.002) == "falsified"
    analysis["noise_floor"]["source"] = "as given"
    assert word(analysis, "noise_floor", high=0.001) == "not run"


def test_mistakes_end_in_one_line(tmp_path):
    pair, told = "quantity = 'delta'\na = 'x'\n", "outcome = 'o'\nhistory = true\n"
    for text, message in {
            "x = ": "Invalid value", "[[predictions]]": "mean prediction",
            HEAD + "quantity = 'detla'": "mean delta", HEAD + pair: "lacks b",
            HEAD + pair + "b = 'y'\nregion = 'anwser'": "mean answer",
            "[prediction]\nid = 1": "double",
            HEAD + "quantity = 'noise_floor'\nhgih = 1": "mean high",
            HEAD + "quantity = 'noise_floor'\nlow = 2\nhigh = 1": "low is above high",
            HEAD + "quantity = 'noise_floor'\nlow = '2'": "low cannot be '2'",
            HEAD + "quantity = 'above'\na = 'x'\nb = 'y'\nover = [{c = 1}]": "no key is called c",
            HEAD + "history = true": "lacks outcome", 2 * (HEAD + told): "there twice"}.items():
        (tmp_path / "p.toml").write_text(text)
        with pytest.raises(UserError, match=message) as error:
            judge.read(tmp_path / "p.toml")
        assert "\n" not in str(error.value)
    entries = judge.read(FILE)
    assert len(judge.committed(FILE, entries)) == len(entries)


def test_registered_before_or_after(analysis, tmp_path):
    def git(*args, when=0):
        stamp = {f"GIT_{who}_DATE": f"{when} +0000" for who in ("AUTHOR", "COMMITTER")}
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", *args], cwd=tmp_path,
                       check=True, capture_output=True, env=os.environ | stamp)

    def words():
        entries = judge.read(path)
        found = judge.judge(analysis, entries, judge.committed(path, entries))
        assert [e["late"] for e in found] == ["AFTER" in e["registered"] for e in found]
        return [e["registered"] for e in found]

    path, entry = tmp_path / "p.toml", HEAD + "quantity = 'delta'\na = 'san'\nb = 'ffn'\nhigh = 9\n"
    path.write_text(entry + entry.replace("'x'", "'y'"))
    os.utime(path, (START + 9, START + 9))
    assert words() == ["not committed, file of 2026-01-02 00:00:09, AFTER the run started"] * 2
    git("init", "-q")
    git("add", "p.toml")
    git("commit", "-qm", "a", when=START)
    before = "registered 2026-01-02 00:00:00, before the runs"
    assert words() == [before] * 2
    path.write_text("# A comment.\n" + path.read_text().replace("high = 9\n", "", 1))
    assert words()[0].startswith("not committed") and words()[1] == before
    git("commit", "-qam", "b", when=START + 5)
    assert words() == ["registered 2026-01-02 00:00:05, AFTER the run started", before]
    analysis["runs"][0]["started"] = None
    assert words()[1] == "registered 2026-01-02 00:00:00, start of a run unknown"
