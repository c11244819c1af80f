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


def ordering_task(rng: random.Random) -> tuple[str, str]:
    """(context, statements): which of two names stands first in a line, and which of two years is the earlier."""
    statements = []
    for _ in range(3):
        kind: Kind = rng.choice(KINDS)
        a, b = draw(kind, rng, "pretraining"), draw(kind, rng, "pretraining")
        one, two = rng.sample(range(BIRTH_YEARS[0], RELEASE_YEARS[-1] + 1), 2)
        earlier = rng.random() < 0.5
        context = f" Which is {'earlier' if earlier else 'later'}, {a} or {b}?\n"
        statements.append(compare(earlier, a, str(one), b, str(two)))
    # the line asks for the last pair, which is compared first; the others are there for the order of years
    statements = [f"The first is {a}. The second is {b}.", statements[2], *statements[:2]]
    return context, " " + " ".join(statements)


def pretraining_sample(rng: random.Random, *, easy: bool = False) -> tuple[str, str]:
    """One (context, statements) pair; the loss falls on the statements. `easy` gives a single passage."""
    if easy:
        return reading_task(rng, 1)
    kind = rng.random()
    if kind < 0.5:
        return reading_task(rng, rng.choice((1, 2, 2, 3)))
    return comparison_task(rng) if kind < 0.75 else ordering_task(rng)
