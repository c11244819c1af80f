"""The demo's generated encyclopedia with multi-hop questions, in the style of 2WikiMultiHopQA.

A world has entities (people, films, companies, bands, albums, cities, countries), a passage each, and questions whose answers
need several of them: compositional chains of 2, 3 and 4 hops, comparisons, and comparisons of two chains. The splits share no
entity; all passages lie in one corpus, so the other splits are distractors, and many names share a part.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from r3flow.data.encyclopedia import BIRTH_YEARS, RELATIONS, RELEASE_YEARS, word_passage
from r3flow.data.names import KINDS, Kind, distinct
from r3flow.errors import ConfigError
from r3flow.params import World as WorldParams
from r3flow.trajectory import Passage, Question

SHARES: dict[Kind, float] = {"person": 0.46, "film": 0.22, "company": 0.06, "band": 0.07, "album": 0.10, "city": 0.08, "country": 0.01}
"""Which part of a split's passages is about which kind of entity."""

Hop = tuple[str, str, str]
"""Subject, relation, object."""


@dataclass(frozen=True)
class Plan:
    """How a question is answered: one chain of hops, or two chains and which end wins."""

    chains: tuple[tuple[Hop, ...], ...]
    earlier: bool | None = None

    @property
    def hops(self) -> int:
        return sum(map(len, self.chains))

    @property
    def answer(self) -> str:
        ends = [chain[-1][2] for chain in self.chains]
        if self.earlier is None:
            return ends[0]
        return self.chains[0 if (int(ends[0]) < int(ends[1])) == self.earlier else 1][0][0]


@dataclass
class World:
    """Passages (id = place in the corpus), questions of each split, and their plans by question text."""

    passages: list[Passage] = field(default_factory=list)
    questions: dict[str, list[Question]] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)

    def knowledge(self) -> dict[str, Any]:
        """What the simulated teacher and judge know, as JSON: question text -> plan."""
        return {
            text: {"chains": [[list(hop) for hop in chain] for chain in plan.chains], "earlier": plan.earlier, "answer": plan.answer}
            for text, plan in self.plans.items()
        }


# Chains by number of hops: the kind that they start from, and the relations.
CHAINS: dict[int, tuple[tuple[Kind, tuple[str, ...]], ...]] = {
    2: (
        ("film", ("director", "birthplace")),
        ("film", ("director", "birth year")),
        ("film", ("director", "spouse")),
        ("film", ("producer", "headquarters")),
        ("film", ("producer", "founder")),
        ("company", ("founder", "birthplace")),
        ("company", ("founder", "spouse")),
        ("band", ("leader", "birth year")),
        ("band", ("hometown", "country")),
        ("album", ("band", "leader")),
        ("album", ("band", "hometown")),
    ),
    3: (
        ("film", ("director", "birthplace", "country")),
        ("film", ("director", "spouse", "birthplace")),
        ("film", ("director", "spouse", "birth year")),
        ("film", ("producer", "founder", "birthplace")),
        ("company", ("founder", "spouse", "birth year")),
        ("band", ("leader", "spouse", "birthplace")),
        ("album", ("band", "leader", "spouse")),
        ("album", ("band", "leader", "birth year")),
        ("album", ("band", "hometown", "country")),
    ),
    4: (
        ("film", ("director", "spouse", "birthplace", "country")),
        ("film", ("producer", "founder", "spouse", "birthplace")),
        ("film", ("producer", "founder", "birthplace", "country")),
        ("album", ("band", "leader", "spouse", "birth year")),
        ("album", ("band", "leader", "birthplace", "country")),
    ),
}
COMPARISONS: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("person", ("birth year",)),
    ("film", ("release year",)),
    ("album", ("release year",)),
)
BRIDGES: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("film", ("director", "birth year")),
    ("company", ("founder", "birth year")),
    ("band", ("leader", "birth year")),
)
# Type, hops, share of the questions.
MIX: tuple[tuple[str, int, float], ...] = (
    ("compositional", 2, 0.38),
    ("compositional", 3, 0.22),
    ("compositional", 4, 0.08),
    ("comparison", 2, 0.18),
    ("bridge_comparison", 4, 0.14),
)

_ASK: dict[str, tuple[str, ...]] = {
    "birthplace": ("Where was {x} born?", "In which city was {x} born?"),
    "birth year": ("In which year was {x} born?", "When was {x} born?"),
    "spouse": ("Who is the spouse of {x}?", "Who is married to {x}?"),
    "headquarters": ("In which city is {x} based?", "Where is the headquarters of {x}?"),
    "founder": ("Who founded {x}?", "Who is the founder of {x}?"),
    "leader": ("Who leads {x}?", "Who is the leader of {x}?"),
    "hometown": ("In which city was {x} formed?", "Where is {x} from?"),
    "country": ("In which country is {x}?", "Which country is {x} in?"),
}


def _ask(start: str, relations: tuple[str, ...], rng: random.Random) -> str:
    phrase = start
    for relation in relations[:-1]:
        phrase = f"the {relation} of {phrase}"
    return rng.choice(_ASK[relations[-1]]).format(x=phrase)


def _ask_comparison(kind: Kind, relations: tuple[str, ...], earlier: bool, a: str, b: str) -> str:
    when = "earlier" if earlier else "later"
    if len(relations) == 2:
        return f"Which {kind} has the {relations[0]} who was born {when}, {a} or {b}?"
    if kind == "person":
        return f"Who was born {when}, {a} or {b}?"
    return f"Which {kind} was released {when}, {a} or {b}?"


class _Split:
    """The entities of one split and their facts."""

    def __init__(self, names: dict[Kind, list[str]], rng: random.Random) -> None:
        self.names, self.rng = names, rng
        self.facts: dict[str, dict[str, str]] = {}
        people = names["person"]
        spouse = {a: b for pair in zip(people[::2], people[1::2], strict=True) for a, b in (pair, pair[::-1])}
        for kind in KINDS:
            for name in names[kind]:
                self.facts[name] = {
                    relation: spouse[name] if relation == "spouse" else self._value(kind, target)
                    for relation, target in RELATIONS[kind].items()
                }

    def _value(self, kind: Kind, target: Kind | None) -> str:
        if target is not None:
            return self.rng.choice(self.names[target])
        return str(self.rng.choice(BIRTH_YEARS if kind == "person" else RELEASE_YEARS))

    def chain(self, start: str, relations: tuple[str, ...]) -> tuple[Hop, ...]:
        hops, subject = [], start
        for relation in relations:
            value = self.facts[subject][relation]
            hops.append((subject, relation, value))
            subject = value
        return tuple(hops)

    def draw(self, kind: str, hops: int) -> tuple[str, Plan]:
        """A question's text and plan."""
        rng = self.rng
        if kind == "compositional":
            first, relations = rng.choice(CHAINS[hops])
            start = rng.choice(self.names[first])
            return _ask(start, relations, rng), Plan((self.chain(start, relations),))
        first, relations = rng.choice(COMPARISONS if kind == "comparison" else BRIDGES)
        earlier = rng.random() < 0.5
        while True:
            a, b = rng.sample(self.names[first], 2)
            one, two = self.chain(a, relations), self.chain(b, relations)
            if one[-1][2] != two[-1][2] and one[0][2] != two[0][2]:
                return _ask_comparison(first, relations, earlier, a, b), Plan((one, two), earlier)


def generate_world(seed: int, params: WorldParams) -> World:
    """A world of about `params.passages` passages, the same for the same seed.

    Raises ConfigError if there are not enough names for that many passages.
    """
    world = World()
    sizes = {"train": params.train_questions, "dev": params.dev_questions, "test": params.test_questions}
    pools = {kind: distinct(kind, random.Random(f"{seed}/names/{kind}"), "world") for kind in KINDS}
    pages: list[tuple[str, str]] = []
    drawn: dict[str, list[tuple[str, Plan, str]]] = {}
    for split, count in sizes.items():
        rng = random.Random(f"{seed}/{split}")
        passages = max(60, round(params.passages * count / sum(sizes.values())))
        names: dict[Kind, list[str]] = {}
        for kind in KINDS:
            wanted = max(4, round(passages * SHARES[kind])) // 2 * 2
            names[kind] = [name for name, _ in zip(pools[kind], range(wanted), strict=False)]
            if len(names[kind]) < wanted:
                raise ConfigError(
                    f"params.yaml: prepare.world.passages: {params.passages} needs more {kind} names than there are; lower it"
                )
        entities = _Split(names, rng)
        for kind in KINDS:
            pages += [(name, word_passage(kind, name, entities.facts[name], rng)) for name in names[kind]]
        drawn[split] = _draw_questions(entities, count, rng, split)
    random.Random(f"{seed}/order").shuffle(pages)
    world.passages = [Passage(f"p{number}", title, text) for number, (title, text) in enumerate(pages)]
    place = {passage.title: passage.id for passage in world.passages}
    for split, items in drawn.items():
        world.questions[split] = []
        for number, (text, plan, form) in enumerate(items):
            gold = tuple(dict.fromkeys(place[hop[0]] for chain in plan.chains for hop in chain))
            world.questions[split].append(Question(f"{split}-{number}", text, (plan.answer,), gold, form, plan.hops))
            world.plans[text] = plan
    return world


def _draw_questions(entities: _Split, count: int, rng: random.Random, split: str) -> list[tuple[str, Plan, str]]:
    """`count` questions with different texts, their kinds in the proportions of MIX, shuffled."""
    items: dict[str, tuple[str, Plan, str]] = {}
    for kind, hops, share in MIX:
        wanted, tries = round(count * share), 0
        while wanted and tries < 200 * count:
            tries += 1
            text, plan = entities.draw(kind, hops)
            if text not in items:
                items[text] = (text, plan, kind)
                wanted -= 1
        if wanted:
            raise ConfigError(
                f"params.yaml: prepare.world: {split}_questions needs more passages; raise prepare.world.passages or lower it"
            )
    while len(items) < count:
        text, plan = entities.draw("compositional", 2)
        items.setdefault(text, (text, plan, "compositional"))
    result = list(items.values())[:count]
    rng.shuffle(result)
    return result
