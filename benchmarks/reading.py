"""How well the tiny base model reads: which facts of one to four passages it states rightly, and which years it orders, and
whether it counts.

`python -m benchmarks.reading` prints the share of statements whose every value token is the model's first choice, given the context and
the statement up to there, with a 95% interval. The contexts are of a seed that pre-training never draws from.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from typing import Any

import torch

from r3flow.data.encyclopedia import compare, state
from r3flow.data.names import draw
from r3flow.data.pretrain import counting_task, facts_of, passages_line
from r3flow.evaluation.bootstrap import interval
from r3flow.policy import load_policy

SEED = 7_919
Item = tuple[str, str, str]
"""Context, the statement's beginning, what must follow."""


def facts_task(rng: random.Random, documents: int, same: bool) -> Item:
    """One fact of one of `documents` passages; `same`: all are about people, so that each states the relation that is asked for."""
    kinds = ["person"] * documents if same else [rng.choice(["person", "film", "company", "band", "album"]) for _ in range(documents)]
    items = [(kind, draw(kind, rng, "pretraining"), facts_of(kind, rng)) for kind in kinds]  # type: ignore[arg-type]
    _, name, facts = rng.choice(items)
    relation = rng.choice(list(facts))
    before, after = state(relation, name, "\0").split("\0")
    return passages_line(items, rng), " " + before.rstrip(), f" {facts[relation]}{after}"  # type: ignore[arg-type]


def comparison_item(rng: random.Random) -> Item:
    """The comparison of two years that were stated just before."""
    a, b = draw("film", rng, "pretraining"), draw("film", rng, "pretraining")
    one, two = rng.sample(range(1930, 2000), 2)
    earlier = rng.random() < 0.5
    context = f" Which film was released {'earlier' if earlier else 'later'}, {a} or {b}?\n"
    context += passages_line(
        [("film", name, {**facts_of("film", rng), "release year": str(year)}) for name, year in ((a, one), (b, two))], rng
    )
    said = f" {state('release year', a, str(one))} {state('release year', b, str(two))}"
    whole = compare(earlier, a, str(one), b, str(two))
    cut = whole.index(f": {b}")  # behind both years
    return context, f"{said} {whole[:cut]}", whole[cut:]


def counting_item(rng: random.Random) -> Item:
    """The number of the last of four to seven parts."""
    *before, (marker, _), _ = counting_task(rng)
    return "".join(text for text, _ in before), "", marker


def score(model: Any, tokenizer: Any, items: Sequence[Item]) -> list[bool]:
    """Whether each continuation is the model's first choice, token by token."""
    right = []
    for start in range(0, len(items), 100):
        rows = [
            [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (context + before, after)]
            for context, before, after in items[start : start + 100]
        ]
        width = max(len(a) + len(b) for a, b in rows)
        ids = torch.tensor([a + b + [0] * (width - len(a) - len(b)) for a, b in rows])
        with torch.no_grad():
            choice = model(input_ids=ids).logits[:, :-1].argmax(-1)
        for row, (a, b) in enumerate(rows):
            right.append(choice[row, len(a) - 1 : len(a) + len(b) - 1].tolist() == b)
    return right


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/tiny-base")
    parser.add_argument("--contexts", type=int, default=500)
    arguments = parser.parse_args()
    model, tokenizer = load_policy(arguments.model, trust_remote_code=False)
    model.eval()
    tasks = {
        "fact, one passage": lambda rng: facts_task(rng, 1, False),
        "fact, two passages": lambda rng: facts_task(rng, 2, False),
        "fact, two passages with the same relation": lambda rng: facts_task(rng, 2, True),
        "fact, four passages": lambda rng: facts_task(rng, 4, False),
        "comparison of two years, whole": comparison_item,
        "number of the last of several parts": counting_item,
    }
    for name, make in tasks.items():
        rng = random.Random(f"{SEED}/{name}")
        right = score(model, tokenizer, [make(rng) for _ in range(arguments.contexts)])
        low, high = interval([float(value) for value in right], 2000, SEED)
        print(f"{name:45s} {100 * sum(right) / len(right):5.1f}% [{100 * low:.1f}, {100 * high:.1f}]  (n = {len(right)})")


if __name__ == "__main__":
    main()
