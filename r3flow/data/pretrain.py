"""The text that the tiny base model is pre-trained on: short reading tasks about random entities, fresh in every sequence.

A sequence is a context (a question-like line, then one to three passages) and plain statements that follow from it. It teaches
to read, to copy names, and the order of years; it holds no step, no query and no protocol, so the base model cannot search.
"""

from __future__ import annotations

import random

from r3flow.data.encyclopedia import BIRTH_YEARS, RELATIONS, RELEASE_YEARS, compare, state, word_passage
from r3flow.data.names import KINDS, Kind, draw

_KIND_WEIGHTS = (8, 5, 2, 2, 3, 1, 1)  # in the order of KINDS


def _facts(kind: Kind, rng: random.Random) -> dict[str, str]:
    facts = {}
    for relation, target in RELATIONS[kind].items():
        years = BIRTH_YEARS if kind == "person" else RELEASE_YEARS
        facts[relation] = draw(target, rng, "pretraining") if target else str(rng.choice(years))
    return facts


def _documents(items: list[tuple[Kind, str, dict[str, str]]], rng: random.Random) -> str:
    pages = [f"[{place}] {name}: {word_passage(kind, name, facts, rng)}" for place, (kind, name, facts) in enumerate(items, 1)]
    return " " + " ".join(pages) + "\n"


def _years(rng: random.Random) -> str:
    a, b = rng.sample(range(BIRTH_YEARS[0], RELEASE_YEARS[-1] + 1), 2)
    return f"{a} is {'earlier' if a < b else 'later'} than {b}."


def reading_task(rng: random.Random, documents: int) -> tuple[str, str]:
    """(context, statements): passages, and facts that they state in other words."""
    items: list[tuple[Kind, str, dict[str, str]]] = []
    for _ in range(documents):
        kind: Kind = rng.choices(KINDS, _KIND_WEIGHTS)[0]
        name = draw(kind, rng, "pretraining")
        if items and rng.random() < 0.5:  # a page about something that the page before mentions
            before = items[-1]
            links = [(target, before[2][relation]) for relation, target in RELATIONS[before[0]].items() if target]
            if links:
                kind, name = rng.choice(links)
        items.append((kind, name, _facts(kind, rng)))
    statements = [state(relation, name, value) for _, name, facts in items for relation, value in facts.items()]
    rng.shuffle(statements)
    return _documents(items, rng), " " + " ".join(statements[:8])


def comparison_task(rng: random.Random) -> tuple[str, str]:
    """(context, statements): two entities named in a line before their passages; which is which, their years, which wins."""
    kind: Kind = rng.choice(("person", "film", "album"))
    relation = "birth year" if kind == "person" else "release year"
    earlier = rng.random() < 0.5
    while True:
        a, b = draw(kind, rng, "pretraining"), draw(kind, rng, "pretraining")
        one, two = _facts(kind, rng), _facts(kind, rng)
        if a != b and one[relation] != two[relation]:
            break
    items: list[tuple[Kind, str, dict[str, str]]] = [(kind, a, one), (kind, b, two)]
    if rng.random() < 0.5:
        items.reverse()
    winner = a if (int(one[relation]) < int(two[relation])) == earlier else b
    context = f" Which is {'earlier' if earlier else 'later'}, {a} or {b}?\n" + _documents(items, rng)
    parts = [f"The first is {a}.", f"The second is {b}.", state(relation, a, one[relation]), state(relation, b, two[relation])]
    rng.shuffle(parts)
    parts.append(compare(earlier, a, one[relation], b, two[relation]) + f" The answer is {winner}.")
    return context, " " + " ".join(parts)


def naming_task(rng: random.Random) -> tuple[str, str]:
    """(context, statements): the order of two names in a line, and the order of years."""
    kind: Kind = rng.choice(KINDS)
    a, b = draw(kind, rng, "pretraining"), draw(kind, rng, "pretraining")
    parts = [f"The first is {a}.", f"The second is {b}."]
    if rng.random() < 0.5:
        parts.reverse()
    return f" Which is {rng.choice(('earlier', 'later'))}, {a} or {b}?\n", " " + " ".join(parts + [_years(rng) for _ in range(6)])


def pretraining_sample(rng: random.Random, *, easy: bool = False) -> tuple[str, str]:
    """One (context, statements) pair; the loss falls on the statements. `easy` gives a single passage."""
    if easy:
        return reading_task(rng, 1)
    kind = rng.random()
    if kind < 0.55:
        return reading_task(rng, rng.choice((1, 2, 2, 3)))
    return comparison_task(rng) if kind < 0.85 else naming_task(rng)
