"""The text that the tiny base model is pre-trained on: short reading tasks about random entities, fresh in every sequence.

A sequence has passages (and sometimes a question-like line before them) and plain statements that follow from them. It teaches to read,
to copy names, to tell apart passages that state the same relation, the order of years, and at the end to count. Of the protocol it shows
the numbers of steps alone, between unrelated texts: no step, no query and no answer, so the base model cannot search.
"""

from __future__ import annotations

import random

from r3flow.data.encyclopedia import BIRTH_YEARS, RELATIONS, RELEASE_YEARS, compare, state, word_passage
from r3flow.data.names import KINDS, Kind, draw, half_of, words

_KIND_WEIGHTS = (8, 5, 2, 2, 3, 1, 1)  # in the order of KINDS


def facts_of(kind: Kind, rng: random.Random) -> dict[str, str]:
    facts = {}
    for relation, target in RELATIONS[kind].items():
        years = BIRTH_YEARS if kind == "person" else RELEASE_YEARS
        facts[relation] = draw(target, rng, "pretraining") if target else str(rng.choice(years))
    return facts


def passages_line(items: list[tuple[Kind, str, dict[str, str]]], rng: random.Random) -> str:
    pages = [f"[{place}] {name}: {word_passage(kind, name, facts, rng)}" for place, (kind, name, facts) in enumerate(items, 1)]
    return " " + " ".join(pages) + "\n"


_WORDS = words()

Piece = tuple[str, bool]
"""Text, and whether the loss falls on it: not on passages, nor on what cannot be known beforehand (which fact a statement is about)."""


def _statement(relation: str, subject: str, value: str) -> list[Piece]:
    """The subject's first word is a free choice; from the second on, the statement follows from the passages."""
    before, after = state(relation, "\0", value).split("\0")
    first, *rest = subject.split(" ")
    return [(f" {before}{first}", False), ("".join(f" {word}" for word in rest) + after, True)]


def _items(rng: random.Random, documents: int) -> list[tuple[Kind, str, dict[str, str]]]:
    """Entities with facts, mostly of one kind: a relation alone does not tell which passage is meant. Often one leads to the next."""
    items: list[tuple[Kind, str, dict[str, str]]] = []
    same = rng.random() < 0.6
    kind: Kind = rng.choices(KINDS, _KIND_WEIGHTS)[0]
    while len(items) < documents:
        kind = kind if same else rng.choices(KINDS, _KIND_WEIGHTS)[0]
        name = draw(kind, rng, "pretraining")
        if items and rng.random() < 0.4:  # a page about something that the page before mentions
            before = items[-1]
            links = [(target, before[2][relation]) for relation, target in RELATIONS[before[0]].items() if target]
            if same:
                links = [link for link in links if link[0] == kind]
            if links:
                kind, name = rng.choice(links)
        if all(name != other for _, other, _ in items):
            items.append((kind, name, facts_of(kind, rng)))
    return items


def reading_task(rng: random.Random, documents: int) -> list[Piece]:
    """Passages, and facts that they state in other words: all after the last passage, or some after each."""
    items = _items(rng, documents)
    facts = [(relation, name, value) for _, name, known in items for relation, value in known.items()]
    if rng.random() < 0.6:
        rng.shuffle(facts)
        return [(passages_line(items, rng), False), *(piece for fact in facts[:12] for piece in _statement(*fact))]
    pieces: list[Piece] = []
    known: list[tuple[str, str, str]] = []
    for kind, name, its in items:
        known += [(relation, name, value) for relation, value in its.items()]
        pieces.append((passages_line([(kind, name, its)], rng), False))
        pieces += [piece for fact in rng.sample(known, min(len(known), rng.choice((1, 2, 3)))) for piece in _statement(*fact)]
    return pieces


def _near(name: str, kind: Kind, rng: random.Random) -> str:
    """Another name of the kind that shares a word with `name`."""
    while True:
        ours, others = name.split(" "), draw(kind, rng, "pretraining").split(" ")
        near = f"{ours[0]} {others[1]}" if rng.random() < 0.5 else f"{others[0]} {ours[1]}"
        if half_of(near) == "pretraining" and near != name:
            return near


def recall_task(rng: random.Random, most: int = 6) -> list[Piece]:
    """A list of names with what belongs to each, then the same in another order: only the whole name tells what belongs to it."""
    kind: Kind = rng.choices(KINDS, _KIND_WEIGHTS)[0]
    target: Kind | None = rng.choice((None, *KINDS))
    pairs: dict[str, str] = {}
    for _ in range(rng.choice([size for size in (2, 3, 4, 6) if size <= most])):
        name = _near(rng.choice(list(pairs)), kind, rng) if pairs and rng.random() < 0.3 else draw(kind, rng, "pretraining")
        pairs[name] = draw(target, rng, "pretraining") if target else str(rng.choice(RELEASE_YEARS))
    pieces: list[Piece] = [("".join(f" {name}: {value}." for name, value in pairs.items()) + "\n", False)]
    for name, value in rng.sample(list(pairs.items()), len(pairs)):
        first, rest = name.split(" ", 1)
        # the second word follows from the first only where no other name begins with it
        shared = sum(other.split(" ")[0] == first for other in pairs) > 1
        pieces += [(f" {name}:", False), (f" {value}.", True)] if shared else [(f" {first}", False), (f" {rest}: {value}.", True)]
    return pieces


def comparison_task(rng: random.Random) -> list[Piece]:
    """Two entities named in a line before their passages; which is which, their years, which wins."""
    kind: Kind = rng.choice(("person", "film", "album"))
    relation = "birth year" if kind == "person" else "release year"
    earlier = rng.random() < 0.5
    while True:
        a, b = draw(kind, rng, "pretraining"), draw(kind, rng, "pretraining")
        one, two = facts_of(kind, rng), facts_of(kind, rng)
        if a != b and one[relation] != two[relation]:
            break
    items: list[tuple[Kind, str, dict[str, str]]] = [(kind, a, one), (kind, b, two)]
    if rng.random() < 0.5:
        items.reverse()
    winner = a if (int(one[relation]) < int(two[relation])) == earlier else b
    parts: list[list[Piece]] = [[(f" The first is {a}.", True)], [(f" The second is {b}.", True)]]
    parts += [_statement(relation, a, one[relation]), _statement(relation, b, two[relation])]
    rng.shuffle(parts)
    pieces: list[Piece] = [(f" Which is {'earlier' if earlier else 'later'}, {a} or {b}?\n", False)]
    if rng.random() < 0.5:
        pieces.append((passages_line(items, rng), False))
    else:  # a statement right behind each passage, as one finds it
        for item in items:
            pieces += [(passages_line([item], rng), False), *_statement(relation, item[1], item[2][relation])]
    pieces += [piece for part in parts[: rng.randrange(5)] for piece in part]
    return [*pieces, (f" {compare(earlier, a, one[relation], b, two[relation])} The answer is {winner}.", True)]


def ordering_task(rng: random.Random) -> list[Piece]:
    """Which of two names stands first in a line, and which of two years is the earlier."""
    pieces: list[Piece] = []
    for _ in range(3):
        kind: Kind = rng.choice(KINDS)
        a, b = draw(kind, rng, "pretraining"), draw(kind, rng, "pretraining")
        one, two = rng.sample(range(BIRTH_YEARS[0], RELEASE_YEARS[-1] + 1), 2)
        earlier = rng.random() < 0.5
        _, settled = compare(earlier, a, str(one), b, str(two)).split(f"{two}:", 1)
        pieces += [
            (f" Which is {'earlier' if earlier else 'later'}, {a} or {b}?\n", False),
            (f" The first is {a}. The second is {b}.", True),
            (f" {one}: {a}. {two}:", False),
            (settled, True),
        ]
    return pieces


def repetition_task(rng: random.Random) -> list[Piece]:
    """Groups of three words, then the groups in another order: what followed once follows again. The shortest way to learn to copy."""
    groups = [_words_in_a_row(rng) for _ in range(rng.choice((2, 2, 3)))]
    pieces: list[Piece] = [("".join(f" {' '.join(group)}." for group in groups), False)]
    for first, *rest in rng.sample(groups, len(groups)):
        pieces += [(f" {first}", False), (f" {' '.join(rest)}.", True)]
    return pieces


def _words_in_a_row(rng: random.Random) -> list[str]:
    """Three words of names, no two of which form a name of the worlds' half."""
    row = [rng.choice(_WORDS)]
    while len(row) < 3:
        word = rng.choice(_WORDS)
        if half_of(f"{row[-1]} {word}") == "pretraining":
            row.append(word)
    return row


def counting_task(rng: random.Random) -> list[Piece]:
    """Parts numbered in a row, from one to four on, with text in each that says nothing about its number.

    The numbers are the tokens that number a step later: policies that met the last of them in few trajectories took step 7 for step 6.
    """
    start, parts = rng.randint(1, 4), rng.randint(4, 7)
    pieces: list[Piece] = []
    for number in range(start, start + parts):
        filler = "".join(text for text, _ in reading_task(rng, rng.choice((1, 1, 2)))[: rng.randint(1, 6)])
        pieces += [(f"Step {number}:", number > start), (f"{filler.rstrip()}\n", False)]
    return pieces


REPETITION, RECALL, SHORT = 200, 400, 600
"""Training steps at which lists follow repetitions, passages follow lists, and the final mixture begins. Absolute numbers: telling apart
passages was not learned in thousands of steps where copying and recall had not been learned before (docs/adr/0006).
"""


def last_sample(rng: random.Random) -> list[Piece]:
    """One sequence of the last lesson: to count, in between what was learned before."""
    return counting_task(rng) if rng.random() < 0.15 else pretraining_sample(rng)


def pretraining_sample(rng: random.Random, step: int | None = None) -> list[Piece]:
    """One sequence of the curriculum's mixture at a training step; None is the final one."""
    kind = rng.random()
    if step is not None and step < REPETITION:
        return repetition_task(rng)
    if step is not None and step < RECALL:
        return repetition_task(rng) if kind < 0.1 else recall_task(rng, 3 if step < (REPETITION + RECALL) // 2 else 6)
    if step is not None and step < SHORT:
        return recall_task(rng) if kind < 0.25 else reading_task(rng, rng.choice((1, 1, 2)))
    if kind < 0.08:
        return recall_task(rng)
    if kind < 0.68:
        return reading_task(rng, rng.choice((1, 2, 2, 2, 3, 3, 4)))
    return comparison_task(rng) if kind < 0.9 else ordering_task(rng)
