"""microsynth: an endless corpus in SYNTH's schema about an invented world.

What must be recalled from weights (the facts of a World, the same in every document) and what can
be routed from context (facts about strangers, made up anew each time) is known by construction. A
Chooser makes every choice and adds -log p to the region that shows it first, so a document carries
its exact surprisal in nats: the floor that no model's mean loss can pass.

    python microsynth.py            # print a document of each kind; reads and writes nothing
    python prepare.py microsynth    # variant synth: six exercises
    python prepare.py microweb      # variant web: the same world's facts as plain prose

Dials of generate(): `entities`, the size of the world; `mix`, the weight of each exercise, as a
dict, as "memorization=2,rag=1" or by a name in MIXES; `world_seed` fixes the world, `seed` picks
documents. Storage-heavy: mix="storage" and more entities. Routing-heavy: mix="routing".

The floor is exact by region since every choice can be read off the text, no region's text is the
beginning of another that could stand there, and the query settles whether there is a trace.
"""
import math
import random
from collections import namedtuple

# ---- the world, in words ---------------------------------------------------------------------

# No value is the beginning of another of its attribute: a candidate must not be half of a second.
Attribute = namedtuple("Attribute", "noun verb question values")
ATTRIBUTES = [Attribute(*words, values.split()) for *words, values in (
    ("home town", "lived in", "Where did {name} live?", "Brinmoor Caldery Dunwick Eskvale Farrowby "
     "Glenhurst Hallowend Ironford Kestering Lowmarsh Northolm Oakhaven Redcliff Thornlea Vinterby "
     "Zellham"),
    ("trade", "worked as a", "What work did {name} do?", "baker brewer carter cobbler cooper "
     "farmer fisher glazier hunter joiner mason miner potter sailor tanner weaver"),
    ("colour", "dressed in", "What colour did {name} wear?", "amber black blue brown coral cream "
     "gold green grey indigo orange pink purple scarlet silver white"),
    ("animal", "kept a", "What animal did {name} keep?", "badger camel cat dog donkey duck falcon "
     "goat hare horse lizard mule parrot rabbit sheep wolf"),
    ("year", "arrived in", "When did {name} arrive?", " ".join(map(str, range(1703, 1799, 6)))),
)]
ENTITIES = 300  # prototype, d 64: nothing of 3,000 known after 2.5M tokens, most of 300 after 6M
STRANGERS = 100  # names for passages; the world has no facts about them
SYLLABLES = [onset + vowel for onset in "bdfghjklmnprstvz" for vowel in "aeiou"]

STATEMENTS = ["{name} {verb} {value}.", "The {noun} of {name} was {value}.",
              "{name}'s {noun} was {value}.", "Records give {name} the {noun} {value}."]
QUESTIONS = ["What was the {noun} of {name}?", "What was {name}'s {noun}?",
             "Name the {noun} of {name}.", "Give {name}'s {noun}."]
# Probes cut an answer before its value, so every form has it at the end.
ANSWERS = [*STATEMENTS[:2], "It was {value}.", "The answer is {value}."]
THINK = ["", "Think first: "]  # before a question; asks for a trace
LEADS = ["", "Answer: ", "Here it is: ", "So: "]
PASSAGE_LENGTHS = [3, 4, 5]  # sentences; measured: 110 tokens at most with V 1024, for rows of 128

NUMBERS = range(10, 100)
THINGS = "apples books coins nails pears shells".split()
SUMS = ["How many {thing} are {a} {word} {b}?", "Count: {a} {thing} {word} {b} {thing}.",
        "What is {a} {word} {b}, in {thing}?", "Work out {a} {thing} {word} {b}."]
NOUNS = "bell boat bridge candle drum fence fox gate hammer king lamp needle piano ship".split()
VERBS = "carried crossed drew followed found liked moved painted".split()
ADJECTIVES = "bright cold dark heavy large narrow new plain quiet round small warm".split()
EDITS = ["Replace {old} by {new}: {text}", "Put {new} for {old} in this line: {text}",
         "{text} Change {old} to {new}.", "Edit: {text} It should be {new}, not {old}."]
WRITING = ["Write a sentence with {}, {}, {}.", "Use {}, {}, {} in a sentence.",
           "Make a line from {}, then {}, then {}.", "Join {}, {}, {} in that order."]
OPENINGS = ["This is about {}.", "Of {} this is known.", "{}: an account.", "Records speak of {}."]
FURTHER = [*STATEMENTS, "They {verb} {value}.", "Their {noun} was {value}."]
WEB_FACTS = {1: 5, 2: 3}  # persons in a paragraph: facts told of each


class Chooser:
    """The randomness of one document, and the surprisal of its choices by region in `nats`."""

    def __init__(self, seed, *regions):
        self.rng = random.Random(seed)  # a str seed gives the same stream in every Python 3
        self.nats = dict.fromkeys(regions, 0.0)

    def draw(self, n, weights=None):
        """An index below n. The tests replace this to walk every path."""
        return self.rng.choices(range(n), weights)[0] if weights else int(self.rng.random() * n)

    def pick(self, options, region, weights=None):
        """One of the options: all equally likely, or by weights that sum to 1."""
        i = self.draw(len(options), weights)
        self.nats[region] -= math.log(weights[i] if weights else 1 / len(options))
        return options[i]

    def sample(self, options, k, region):
        """k different options in random order, each picked from those that are left."""
        left = list(range(len(options)))
        return [options[left.pop(self.pick(range(len(left)), region))] for _ in range(k)]


class World:
    """`entities`: (name, [(Attribute, value), ...]) each; `strangers`: names without facts.

    A larger world of the same seed extends a smaller one. Raises ValueError for a bad size.
    """

    def __init__(self, entities=ENTITIES, seed=0):
        if not 2 <= entities <= 100_000:  # of 512,000 names, a free one must stay easy to find
            raise ValueError(f"entities must be from 2 to 100000, not {entities}")
        rng, facts_rng, names = random.Random(f"names {seed}"), random.Random(f"facts {seed}"), {}
        while len(names) < STRANGERS + entities:
            names["".join(rng.choice(SYLLABLES) for _ in range(3)).capitalize()] = None
        self.strangers = list(names)[:STRANGERS]
        self.entities = [(name, [(a, facts_rng.choice(a.values)) for a in ATTRIBUTES])
                         for name in list(names)[STRANGERS:]]


def say(form, name, attribute, value=""):
    return form.format(name=name, noun=attribute.noun, verb=attribute.verb, value=value)


def ask(c, name, attribute):
    return say(c.pick([attribute.question, *QUESTIONS], "query"), name, attribute)


# ---- exercises: each gives query, trace and answer -------------------------------------------


def memorization(c, world):
    """A fact from weights: it is recalled in the trace if there is one, else in the answer."""
    name, facts = c.pick(world.entities, "query")
    attribute, value = c.pick(facts, "query")
    think = c.pick(THINK, "query")
    query = think + ask(c, name, attribute)
    trace = think and "I recall: " + say(c.pick(STATEMENTS, "trace"), name, attribute, value)
    return query, trace, say(c.pick(ANSWERS, "answer"), name, attribute, value)


def rag(c, world):
    """One attribute of several strangers, asked of one: only the name leads to the value."""
    attribute = c.pick(ATTRIBUTES, "query")
    names = c.sample(world.strangers, c.pick(PASSAGE_LENGTHS, "query"), "query")
    facts = [(name, attribute, c.pick(attribute.values, "query")) for name in names]
    lines = [say(c.pick(STATEMENTS, "query"), *fact) for fact in facts]
    asked = c.pick(range(len(facts)), "query")
    think = c.pick(THINK, "query")
    query = " ".join(lines) + " " + think + ask(c, names[asked], attribute)
    trace = think and "The text says: " + lines[asked]
    return query, trace, say(c.pick(ANSWERS, "answer"), *facts[asked])


def mcq(c, world):
    """A fact from weights, among three other values; no trace, as in SYNTH."""
    name, facts = c.pick(world.entities, "query")
    attribute, value = c.pick(facts, "query")
    options = c.sample([v for v in attribute.values if v != value], 3, "query")
    right = c.pick(range(4), "query")
    options.insert(right, value)
    lines = [f"{letter}) {option}" for letter, option in zip("ABCD", options)]
    query = "\n".join(["Choose. " + ask(c, name, attribute), *lines])
    return query, "", c.pick(LEADS, "answer") + lines[right]


def math_exercise(c, world):
    """A sum or a difference; the trace takes the tens first."""
    word, sign, s = c.pick([("plus", "+", 1), ("minus", "-", -1)], "query")
    thing, a = c.pick(THINGS, "query"), c.pick(NUMBERS, "query")
    b = c.pick(NUMBERS if s > 0 else range(NUMBERS[0], a + 1), "query")
    tens, ones = b - b % 10, b % 10
    query = c.pick(SUMS, "query").format(a=a, b=b, word=word, thing=thing)
    trace = f"{a} {sign} {tens} {sign} {ones} = {a + s * tens} {sign} {ones} = {a + s * b}"
    return query, trace, f"{c.pick(LEADS, 'answer')}{a + s * b} {thing}."


def editing(c, world):
    """A sentence to copy with one word replaced."""
    adj, noun = c.sample(ADJECTIVES, 2, "query"), c.sample(NOUNS, 2, "query")
    words = ["The", adj[0], noun[0], c.pick(VERBS, "query"), "the", adj[1], noun[1]]
    at = c.pick([1, 2, 3, 5, 6], "query")  # not an article
    pool = next(pool for pool in (ADJECTIVES, NOUNS, VERBS) if words[at] in pool)
    new = c.pick([word for word in pool if word not in words], "query")
    text = " ".join(words) + "."
    query = c.pick(EDITS, "query").format(old=words[at], new=new, text=text)
    return query, "", c.pick(LEADS, "answer") + text.replace(f" {words[at]}", f" {new}")


def writing(c, world):
    """A sentence around given words: the one answer that the query does not settle."""
    noun_1, verb, noun_2 = (c.pick(pool, "query") for pool in (NOUNS, VERBS, NOUNS))
    query = c.pick(WRITING, "query").format(noun_1, verb, noun_2)
    first, adj_1, adj_2 = (c.pick(pool, "answer") for pool in
                           (["The", "A", "One", "Some"], ADJECTIVES, ADJECTIVES))
    return query, "", f"{first} {adj_1} {noun_1} {verb} the {adj_2} {noun_2}."


EXERCISES = {"memorization": memorization, "rag": rag, "math exercise": math_exercise,
             "editing": editing, "mcq": mcq, "constrained writing": writing}
MIXES = {"default": "memorization=2,rag=1,math exercise=1,editing=1,mcq=1,constrained writing=1",
         "storage": "memorization=6,mcq=2,rag=1,math exercise=1",
         "routing": "rag=4,editing=4,memorization=1,math exercise=1"}

# ---- documents -------------------------------------------------------------------------------


def parse_mix(mix):
    """{exercise: share} of a mix as generate() takes it; "_" may stand for a space. ValueError."""
    if isinstance(mix, str):
        mix = dict(part.partition("=")[::2] for part in MIXES.get(mix, mix).split(","))
    mix = {name.strip().replace("_", " "): weight for name, weight in mix.items()}
    if unknown := sorted(set(mix) - set(EXERCISES)):
        raise ValueError(f"mix: {', '.join(unknown)!r} is neither an exercise "
                         f"({', '.join(EXERCISES)}) nor a named mix ({', '.join(MIXES)})")
    try:
        mix = {name: float(weight) for name, weight in mix.items()}
    except (TypeError, ValueError):
        mix = {}
    if not mix or min(mix.values()) < 0 or not 0 < sum(mix.values()) < math.inf:
        raise ValueError("mix: weights must be numbers, none below 0 and not all 0")
    return {name: weight / sum(mix.values()) for name, weight in mix.items() if weight}


def synth_document(c, world, mix):
    exercise = c.pick(list(mix), "query", list(mix.values()))
    query, trace, answer = EXERCISES[exercise](c, world)
    return {"query": query, "synthetic_reasoning": trace, "synthetic_answer": answer,
            "exercise": exercise, "language": "en", "entropy": c.nats}


def web_document(c, world, mix=None):
    persons = c.sample(world.entities, c.pick(list(WEB_FACTS), "text"), "text")
    lines = [c.pick(OPENINGS, "text").format(" and ".join(name for name, _ in persons))]
    for name, facts in persons:
        forms = STATEMENTS  # a person's first sentence gives the name; "they" may follow
        for fact in c.sample(facts, WEB_FACTS[len(persons)], "text"):
            lines.append(say(c.pick(forms, "text"), name, *fact))
            forms = FURTHER
    return {"text": " ".join(lines), "exercise": "text", "entropy": c.nats}


VARIANTS = {"synth": (synth_document, "query trace answer"), "web": (web_document, "text")}


def generate(n_docs, seed=0, variant="synth", entities=ENTITIES, mix="default", world_seed=0,
             start=0):
    """Iterate over documents start ... start + n_docs - 1; document i depends on (seed, i) alone.

    Yields dicts: query, synthetic_reasoning, synthetic_answer, exercise, language (synth) or text,
    exercise (web), and entropy, {region: nats}. Raises ValueError for a bad dial, at once.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, not {variant!r}")
    (document, regions), world, mix = VARIANTS[variant], World(entities, world_seed), parse_mix(mix)
    return (document(Chooser(f"{seed} {i}", *regions.split()), world, mix)
            for i in range(start, start + n_docs))


# ---- probes: rag queries with known answers, for analyze.py ----------------------------------


def build_probe(c, world, distance, conflict):
    """An item of one of the two kinds below; its four candidates make chance a quarter."""
    if not 0 <= distance < STRANGERS:
        raise ValueError(f"distances must be from 0 to {STRANGERS - 1}, not {distance}")
    asked, length = -1 - distance, max(distance + 1, PASSAGE_LENGTHS[0])
    names = c.sample(world.strangers, length, "query")
    name, known = c.pick(world.entities, "query")
    attribute, truth = c.pick(known, "query")
    pool = attribute.values
    if conflict:  # No line states the truth, so that only weights can speak for it.
        names[asked], pool = name, [value for value in pool if value != truth]
    facts = [(name, attribute, c.pick(pool, "query")) for name in names]
    lines = [say(c.pick(STATEMENTS, "query"), *fact) for fact in facts]
    question, stated = ask(c, names[asked], attribute), facts[asked][2]
    form = c.pick(ANSWERS, "answer").removesuffix(" {value}.")
    # Both rivals come first, then other values of the passage, then any.
    first, told = [stated, truth] if conflict else [stated], [value for *_, value in facts]
    values = c.sample(attribute.values, len(attribute.values), "answer")
    values = sorted(sorted(values, key=lambda v: (v not in first, v not in told))[:4])
    item = {"query": " ".join([*lines, question]), "question": question, "distance": distance,
            "answer_prefix": say(form, names[asked], attribute),
            "candidates": [f" {value}." for value in values]}
    keys = ("passage", "world") if conflict else ("answer",)
    return {**item, **{key: values.index(value) for key, value in zip(keys, first)}}


def retrieval_probes(n, seed=0, distances=(0, 1, 2, 3, 5, 8), entities=ENTITIES, world_seed=0):
    """n items for each distance, the number of sentences between the fact and the question.

    Keys: query, answer_prefix (opens the assistant's turn, without a trace), candidates (each goes
    on from there), answer (the right one's index), distance, question (the query's last part). Up
    to distance 4, rag itself could make the query. Raises ValueError if strangers run out.
    """
    world = World(entities, world_seed)
    return [build_probe(Chooser(f"retrieval {seed} {distance} {i}", "query", "answer"),
                        world, distance, False) for distance in distances for i in range(n)]


def conflict_probes(n, seed=0, entities=ENTITIES, world_seed=0):
    """n items as above, at distances 0 to 3, whose passage contradicts a fact of the world.

    Instead of answer: passage and world, the indices of the value stated and of the true one. The
    question alone is a memorization query: it shows what the weights say without a passage.
    """
    world = World(entities, world_seed)
    return [build_probe(Chooser(f"conflict {seed} {i}", "query", "answer"), world, i % 4, True)
            for i in range(n)]


if __name__ == "__main__":
    for kind in EXERCISES:
        print(next(generate(1, mix={kind: 1})), end="\n\n")
    print(next(generate(1, variant="web")))
