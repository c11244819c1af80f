"""Rewards of a trajectory, step by step: process (did the search help), outcome (is the answer right), format (does the step parse).

Pure functions over a typed `Trajectory`. Only what the protocol's parser read of the policy's own text is looked at, and the hits that
the environment returned: retrieved text can earn nothing. A reward is a number or unknown (None), never zero for "could not tell".

R3-RAG (paper section 3.3, and its released code, which differs) gives each searching step its relevance Rel in [0, 1] times a factor of
the whole trajectory, and the last step a reward of its own:

    preset   factor of Rel: right  wrong  unanswered  malformed | last step: right  wrong  unanswered     malformed
    paper                   1.6    0.8    0.9         1.0       |            1.0    0.0    (Rel x factor)  -1.0
    code                    1.6    0.8    0.9         1.0       |            2.0    0.0    (Rel x factor)  -0.9    (3 decimals)
    demo                    1.2    0.6    0.6         0.6       |            2.0    0.0    Rel x 0.6 - 0.5 -1.0

The demo's penalty for an unanswered trajectory is there because without it a small policy learns to search for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from r3flow.errors import ConfigError
from r3flow.matching import exact_match
from r3flow.trajectory import Step, Trajectory

Case = Literal["right", "wrong", "unanswered", "malformed", "unknown"]

BM25_HALF = 10.0
"""A BM25 score that counts as relevance 0.5 under `process: score`."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A row of the table above. `factor` multiplies Rel, `outcome` and `format` fall on the last step; `digits` rounds every reward."""

    factor: dict[Case, float]
    outcome: dict[Case, float]
    format: float
    digits: int | None = None


PRESETS: dict[str, Preset] = {
    "paper": Preset(
        {"right": 1.6, "wrong": 0.8, "unanswered": 0.9, "malformed": 1.0}, {"right": 1.0, "wrong": 0.0, "unanswered": 0.0}, -1.0
    ),
    "code": Preset(
        {"right": 1.6, "wrong": 0.8, "unanswered": 0.9, "malformed": 1.0}, {"right": 2.0, "wrong": 0.0, "unanswered": 0.0}, -0.9, 3
    ),
    "demo": Preset(
        {"right": 1.2, "wrong": 0.6, "unanswered": 0.6, "malformed": 0.6}, {"right": 2.0, "wrong": 0.0, "unanswered": -0.5}, -1.0
    ),
}


@dataclass(frozen=True, slots=True)
class RewardBreakdown:
    """The rewards of one trajectory. `process` has one entry a step (0 for a step without documents), already times `factor`.

    `outcome` and `format` fall on the last step. None anywhere means that it could not be told; then the whole is unknown.
    """

    case: Case
    factor: float | None
    process: tuple[float | None, ...]
    outcome: float | None
    format: float | None
    digits: int | None = None

    @property
    def known(self) -> bool:
        return self.case != "unknown" and None not in (self.outcome, self.format, *self.process)

    @property
    def steps(self) -> tuple[float | None, ...]:
        """One reward a step; all None if any part is unknown."""
        if self.outcome is None or self.format is None or not self.known:
            return (None,) * len(self.process)
        rewards = [value for value in self.process if value is not None]
        if rewards:
            rewards[-1] += self.outcome + self.format
        return tuple(rewards if self.digits is None else [round(value, self.digits) for value in rewards])

    @property
    def total(self) -> float | None:
        """The sum over steps, None if unknown."""
        rewards = [value for value in self.steps if value is not None]
        return sum(rewards) if self.known else None


def searched(trajectory: Trajectory) -> list[int]:
    """The places in `trajectory.steps` of the steps whose search returned documents: those that have a relevance to be judged."""
    return [place for place, step in enumerate(trajectory.steps) if isinstance(step, Step) and step.query is not None and step.hits]


def case_of(trajectory: Trajectory, verdict: bool | None, outcome: str) -> Case:
    """How a trajectory ended. `verdict` is the judge's, and only looked at where the string match fails and `outcome` asks for it."""
    if trajectory.finish == "failed" or not trajectory.steps:
        return "unknown"
    if trajectory.finish == "malformed":
        return "malformed"
    if trajectory.finish != "answered":
        return "unanswered"
    if exact_match(trajectory.answer, trajectory.question.answers):
        return "right"
    if outcome == "match":
        return "wrong"
    return "unknown" if verdict is None else "right" if verdict else "wrong"


def score(
    trajectory: Trajectory,
    *,
    verdict: bool | None = None,
    relevance: Sequence[float | None],
    preset: str,
    outcome: str = "match_or_judge",
) -> RewardBreakdown:
    """Combine the parts by a preset.

    `relevance` has one entry for each step, in [0, 1] or None for unknown; entries of steps without documents are not looked at.
    Raises ValueError if the lengths differ or a relevance lies outside [0, 1].
    """
    if len(relevance) != len(trajectory.steps):
        raise ValueError(f"{len(relevance)} relevances for {len(trajectory.steps)} steps")
    table, case = PRESETS[preset], case_of(trajectory, verdict, outcome)
    factor = table.factor.get(case)
    process: list[float | None] = [0.0] * len(relevance)
    for place in searched(trajectory):
        value = relevance[place]
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"relevance of step {place + 1} is {value}, expected 0 to 1")
        process[place] = None if value is None or factor is None else value * factor
    if case == "unknown":
        return RewardBreakdown(case, None, tuple(process), None, None)
    last = table.outcome.get(case, 0.0)
    return RewardBreakdown(case, factor, tuple(process), last, table.format if case == "malformed" else 0.0, table.digits)


def relevance_by_gold(trajectory: Trajectory) -> list[float]:
    """Rule: 1 where the first hit is a supporting passage that was not shown before, else 0.

    Raises ConfigError for a question whose supporting passages are not known.
    """
    gold = trajectory.question.gold_ids
    if gold is None:
        raise ConfigError(f"reward.process: gold needs gold_ids, question '{trajectory.question.id}' has none; use judge, score or none")
    return [float(new and first in gold) for first, new in _first_hits(trajectory)]


def relevance_by_score(trajectory: Trajectory, retriever: str) -> list[float]:
    """Rule: how sure the retriever is of its first hit, 0 for one that was shown before.

    Cosine similarities (dense, remote) are cut to [0, 1]; a BM25 score s, which has no upper bound, becomes s / (s + 10).
    """
    values = []
    for place, (_, new) in enumerate(_first_hits(trajectory)):
        step = trajectory.steps[place]
        top = max(0.0, step.hits[0].score) if new and isinstance(step, Step) else 0.0
        values.append(top / (top + BM25_HALF) if retriever == "bm25" else min(1.0, top))
    return values


def _first_hits(trajectory: Trajectory) -> list[tuple[str | None, bool]]:
    """For each step the id of its first hit, and whether no earlier step showed it; (None, False) without hits."""
    seen: set[str] = set()
    found: list[tuple[str | None, bool]] = []
    for step in trajectory.steps:
        hits = step.hits if isinstance(step, Step) else ()
        found.append((hits[0].passage.id, hits[0].passage.id not in seen) if hits else (None, False))
        seen.update(hit.passage.id for hit in hits)
    return found
