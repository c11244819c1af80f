"""The systems that are compared, and the questions that they are compared on. Imports no torch.

All but `rag` run the protocol's loop, greedily, over the same retriever; they differ in their weights alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from r3flow.errors import DataError
from r3flow.files import digest
from r3flow.trajectory import Question


@dataclass(frozen=True, slots=True)
class System:
    """`model` is a folder, None for `policy.base`. `label` and `about` are for readers of tables."""

    label: str
    about: str
    model: str | None
    one_shot: bool = False


SYSTEMS: dict[str, System] = {
    "base": System("Base", "the untrained base model in the protocol's loop", None),
    "rag": System("One-shot RAG", "the base model reads all documents of one search at once", None, one_shot=True),
    "cold_start": System("Cold start", "fine-tuned on accepted teacher trajectories", "models/cold_start"),
    "control": System("Control", "the cold start with more fine-tuning, on as many tokens as PPO used", "models/control"),
    "ppo": System("PPO", "the cold start after reinforcement learning", "models/ppo"),
}


def choose(questions: Iterable[Question], count: int, seed: int) -> list[Question]:
    """`count` questions drawn by `seed` but the same for every system and run, in the file's order; all if there are no more.

    Raises DataError for an empty split.
    """
    pool = list(questions)
    if not pool:
        raise DataError("data/prepared/test.jsonl holds no question; the evaluation needs at least one")
    taken = {question.id for question in sorted(pool, key=lambda question: digest([seed, question.id]))[:count]}
    return [question for question in pool if question.id in taken]
