"""One question's outcome under one system, and its JSONL form (`data/evaluation/<system>.jsonl`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from r3flow import matching
from r3flow.files import read_jsonl, write_jsonl
from r3flow.trajectory import Step, Trajectory

Verdict = Literal["right", "wrong", "unknown"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a system did with a question.

    `tokens` counts generated tokens, end-of-text tokens included. `verdict` is the judge's, None where it was not asked: it is asked
    only where the string match fails and there is an answer; "unknown" is a judge that failed.
    """

    trajectory: Trajectory
    tokens: int
    verdict: Verdict | None = None

    @property
    def em(self) -> bool:
        return matching.exact_match(self.trajectory.answer, self.trajectory.question.answers)

    @property
    def f1(self) -> float:
        return matching.f1(self.trajectory.answer, self.trajectory.question.answers)

    @property
    def accepted(self) -> bool | None:
        """Right by string match or judge; None where only a judge that failed could tell."""
        if self.em or self.verdict == "right":
            return True
        return None if self.verdict == "unknown" else False

    @property
    def format_valid(self) -> bool:
        """Whether there is a step and every step parses. A step budget that runs out is no fault of format."""
        steps = self.trajectory.steps
        return bool(steps) and all(isinstance(step, Step) for step in steps)

    @property
    def gold_recall(self) -> float | None:
        """Share of the gold passages that were shown at any step; None where the gold passages are unknown."""
        gold = set(self.trajectory.question.gold_ids or ())
        if not gold:
            return None
        return len(gold & {passage.id for passage in self.trajectory.passages()}) / len(gold)

    def to_json(self) -> dict[str, Any]:
        """`em` and `f1` are there for readers of the file; `from_json` computes them anew."""
        record = {"trajectory": self.trajectory.to_json(), "tokens": self.tokens, "em": self.em, "f1": round(self.f1, 6)}
        return record if self.verdict is None else {**record, "judge": self.verdict}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Result:
        """Raises KeyError, TypeError or ValueError naming the field."""
        tokens, verdict = value["tokens"], value.get("judge")
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
            raise ValueError(f"field 'tokens' must be a whole number from 0, got {tokens!r}")
        if verdict not in (None, "right", "wrong", "unknown"):
            raise ValueError(f"field 'judge' must be right, wrong or unknown, got {verdict!r}")
        return cls(Trajectory.from_json(value["trajectory"]), tokens, verdict)


def write_results(path: str | Path, results: Iterable[Result]) -> None:
    """One line a question, in the order given, atomically."""
    write_jsonl(path, (result.to_json() for result in results))


def read_results(path: str | Path) -> list[Result]:
    """Raises DataError that names file and line."""
    return list(read_jsonl(path, Result.from_json))
