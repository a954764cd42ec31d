"""The embedded corpus: its floor is exact, its answers are true, its documents repeatable."""
import hashlib
import math
import re
from collections import Counter, defaultdict

import pytest

import microsynth
from microsynth import EXERCISES, World, conflict_probes, generate, parse_mix, retrieval_probes

TEXTS = {"synth": ("query", "synthetic_reasoning", "synthetic_answer"), "web": ("text",)}


class Walker(microsynth.Chooser):
    """Takes given branches, then always the first; remembers where it could have gone on."""

    def __init__(self, path, regions):
        super().__init__("", *regions)
        self.path, self.taken, self.p = path, [], 1.0

    def draw(self, n, weights=None):
        i = self.path[len(self.taken)] if len(self.taken) < len(self.path) else 0
        self.taken.append((i, n))
        self.p *= weights[i] if weights else 1 / n
        return i


def every_document(variant, world, mix):
    document, regions = microsynth.VARIANTS[variant]
    path = []
    while path is not None:
        c = Walker(path, regions.split())
        doc = document(c, world, mix)
        yield tuple(doc[key] for key in TEXTS[variant]), tuple(doc["entropy"].values()), c.p
        while c.taken and c.taken[-1][0] + 1 == c.taken[-1][1]:
            c.taken.pop()
        path = [i for i, _ in c.taken[:-1]] + [c.taken[-1][0] + 1] if c.taken else None


@pytest.fixture(params=[slice(0, 2), slice(2, 4)], ids=["first forms", "last forms"])
def tiny(request, monkeypatch):
    """Tables so small that every document can be made; the statements take turns."""
    few = {name: getattr(microsynth, name)[:3] for name in ("NOUNS", "VERBS", "ADJECTIVES")}
    few["ATTRIBUTES"] = [a._replace(values=a.values[:4]) for a in microsynth.ATTRIBUTES[:2]]
    few["STATEMENTS"] = microsynth.STATEMENTS[request.param]
    few |= {"STRANGERS": 3, "PASSAGE_LENGTHS": [1, 2], "WEB_FACTS": {1: 2, 2: 1}}
    few |= {"NUMBERS": range(8, 12), "THINGS": microsynth.THINGS[:2]}
    for name, table in few.items():
        monkeypatch.setattr(microsynth, name, table)


def assert_prefix_free(texts):
    texts = sorted(set(texts))
    assert not [(a, b) for a, b in zip(texts, texts[1:]) if b.startswith(a)]


@pytest.mark.parametrize("variant", ["synth", "web"])
def test_the_floor_is_the_exact_entropy_of_every_region(tiny, variant):
    docs = list(every_document(variant, World(2), parse_mix("default")))
    assert len({texts for texts, _, _ in docs}) == len(docs)  # choices -> text is injective
    assert math.isclose(sum(p for *_, p in docs), 1, rel_tol=1e-9)
    mass, follow = Counter(), defaultdict(set)
    for texts, _, p in docs:
        for i in range(len(texts) + 1):
            mass[texts[:i]] += p
            if i:
                follow[texts[:i - 1]].add(texts[i - 1])
    for texts, nats, p in docs:  # each region: -log p(its text given the regions before it)
        for i, nat in enumerate(nats):
            assert abs(nat + math.log(mass[texts[:i + 1]] / mass[texts[:i]])) < 1e-9
    for nexts in follow.values():  # else a marker, not the region's text, would show the choice
        assert_prefix_free(nexts)
    exact = -sum(p * math.log(p) for *_, p in docs)
    var = sum(p * math.log(p) ** 2 for *_, p in docs) - exact ** 2
    sums = [sum(d["entropy"].values()) for d in generate(4000, variant=variant, entities=2)]
    assert abs(sum(sums) / 4000 - exact) < 4 * math.sqrt(var / 4000)


def test_full_tables_keep_what_the_floor_rests_on():
    for variant, keys in TEXTS.items():
        assert_prefix_free(d[keys[0]] for d in generate(20_000, variant=variant))
    for attribute in microsynth.ATTRIBUTES:
        assert len(set(attribute.values)) == 16
        assert_prefix_free(attribute.values)
    words = microsynth.NOUNS + microsynth.VERBS + microsynth.ADJECTIVES
    assert len(set(words)) == len(words)
    assert_prefix_free(words)  # an edit finds its word by its beginning


def test_a_document_depends_on_its_seed_and_index_alone():
    for variant in TEXTS:
        docs = list(generate(8, seed=5, variant=variant))
        assert list(generate(5, seed=5, variant=variant, start=3)) == docs[3:]
        assert list(generate(8, seed=6, variant=variant)) != docs
    assert World(20).entities == World(300).entities[:20]
    assert World(20).strangers == World(300).strangers
    assert World(20, seed=1).entities != World(20).entities
    text = "".join(d[k] for v, keys in TEXTS.items() for d in generate(99, variant=v) for k in keys)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "d0a733130e795944"  # any Python


def test_answers_are_true():
    facts, counts = {name: [v for _, v in known] for name, known in World().entities}, Counter()
    for doc in generate(4000):
        query, trace, answer = (doc[key] for key in TEXTS["synth"])
        exercise, said = doc["exercise"], answer.rstrip(".").split()[-1]
        counts[exercise] += 1
        if exercise in ("memorization", "mcq"):
            assert said in next(facts[word] for word in re.findall(r"\w+", query) if word in facts)
        elif exercise == "rag":
            assert not any(name in query for name in facts) and said + "." in query
            assert trace.removeprefix("The text says: ") in query and (not trace or said in trace)
        elif exercise == "math exercise":
            a, sign, tens, _, ones, *_, n = trace.split()
            assert int(n) == int(a) + (int(tens) + int(ones)) * int(sign + "1") and n in answer
        elif exercise == "editing":
            source = re.search(r"The \w+ \w+ \w+ the \w+ \w+\.", query)[0].split()
            assert sum(a != b for a, b in zip(source, answer.split()[-7:])) == 1
    assert set(counts) == set(EXERCISES) and abs(counts["memorization"] / 4000 - 2 / 7) < 0.03


def test_retrieval_probes_ask_for_the_line_at_their_distance():
    names, items = World(20).strangers, retrieval_probes(40, distances=(0, 1, 4, 6), entities=20)
    for item in items:
        lines = item["query"].removesuffix(item["question"]).split(". ")[:-1]
        name = next(name for name in names if name in item["question"])
        assert [name in line for line in lines].index(True) == len(lines) - 1 - item["distance"]
        answer = item["candidates"][item["answer"]]
        assert answer[:-1] in lines[-1 - item["distance"]] and len(set(item["candidates"])) == 4
        assert name in item["answer_prefix"] or item["answer_prefix"] in ("It was", "The answer is")
    assert len(items) == 160


def test_conflict_probes_contradict_the_world():
    world = {name: [f" {v}." for _, v in facts] for name, facts in World(20).entities}
    for item in conflict_probes(40, entities=20):
        name = next(name for name in world if name in item["question"])
        stated, true = (item["candidates"][item[key]] for key in ("passage", "world"))
        assert true in world[name] and stated not in world[name] and len(item["candidates"]) == 4
        assert true[:-1] not in item["query"] and stated[:-1] in item["query"]


@pytest.mark.parametrize("dials", [
    {"entities": 1}, {"entities": 10**6}, {"mix": "poetry=1"}, {"mix": "rag"}, {"mix": "rag=x"},
    {"mix": ""}, {"mix": {}}, {"mix": "rag=0"}, {"mix": "rag=-1,mcq=2"}, {"mix": "rag=nan"},
    {"mix": "rag=inf"}, {"variant": "speech"}])
def test_a_bad_dial_is_refused_in_one_line(dials):
    with pytest.raises(ValueError) as error:
        generate(**{"n_docs": 1, **dials})
    assert "\n" not in str(error.value)
