"""What an iteration tells of itself: rates of its rollouts, means over its updates, and the curve that grows row by row."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from r3flow.matching import exact_match
from r3flow.rewards import RewardBreakdown
from r3flow.rollout import Rollout
from r3flow.turns import faulty_turns


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def rollout_metrics(rollouts: Sequence[Rollout], scored: Sequence[RewardBreakdown] = (), faults: Sequence[str] = ()) -> dict[str, float]:
    """Means a rollout: exact match, searches, rates of how it ended, tokens, turns with one of `faults` (see `r3flow.turns`).

    With `scored`, rewards and their parts too, over the known ones.
    """
    trajectories = [rollout.trajectory for rollout in rollouts]
    values = {
        "em": _mean([float(exact_match(item.answer, item.question.answers)) for item in trajectories]),
        "searches": _mean([float(item.searches) for item in trajectories]),
        "answer_rate": _mean([float(item.finish == "answered") for item in trajectories]),
        "malformed_rate": _mean([float(item.finish == "malformed") for item in trajectories]),
        "tokens": _mean([float(sum(rollout.mask)) for rollout in rollouts]),
        "retrieved_tokens": _mean([float(len(rollout.mask) - sum(rollout.mask)) for rollout in rollouts]),
        **faulty_turns(trajectories, faults),
    }
    if not scored:
        return values
    known = [item for item in scored if item.known]
    parts = {
        "reward": [item.total or 0.0 for item in known],
        "reward_outcome": [sum(value or 0.0 for value in item.outcome) for item in known],
        "reward_process": [sum(value or 0.0 for value in item.process) for item in known],
        "reward_format": [sum(value or 0.0 for value in item.format) for item in known],
    }
    return {**{name: _mean(entries) for name, entries in parts.items()}, **values, "unknown": float(len(scored) - len(known))}


class Sums:
    """Sums over tokens that stay on the device until the iteration ends."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: Counter[str] = Counter()

    def add(self, name: str, value: torch.Tensor) -> None:
        self._sums[name] = self._sums[name] + value if name in self._sums else value

    def count(self, tokens: int, name: str = "") -> None:
        """Tokens that went into `name`; into all others by default."""
        self._counts[name] += tokens

    def means(self) -> dict[str, float]:
        """The mean a token of each."""
        return {name: float(value) / self._counts[name if name in self._counts else ""] for name, value in self._sums.items()}


class Curve:
    """Rows of finished iterations, running counts, and the row under way. `state` goes into checkpoints."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.counts: Counter[str] = Counter()
        self.open: dict[str, float] = {}

    def begin(self, values: Mapping[str, float]) -> None:
        self.open = dict(values)

    def add(self, values: Mapping[str, float]) -> None:
        self.open.update(values)

    def finish(self, step: int, values: Mapping[str, float]) -> None:
        """Close the row under way as iteration `step`."""
        self.rows.append({"step": step, **values})
        self.counts["unknown"] += int(values.get("unknown", 0))
        self.open = {}

    def last(self, name: str) -> float | None:
        """The newest value of a column."""
        return next((row[name] for row in reversed(self.rows) if name in row), None)

    def state(self) -> dict[str, Any]:
        return {"rows": self.rows, "counts": {name: count for name, count in self.counts.items() if name != "judge_calls"}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.rows, self.counts = list(state["rows"]), Counter(state["counts"])

    def csv(self) -> str:
        """All rows, six significant digits; a column that a row lacks is empty."""
        columns = sorted({name for row in self.rows for name in row} - {"step"})
        text = io.StringIO()
        writer = csv.DictWriter(text, ["step", *columns], lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            writer.writerow({name: int(value) if name == "step" else f"{value:.6g}" for name, value in row.items()})
        return text.getvalue()
