"""Rewards of a trajectory, step by step: process (did the search help), outcome (is the answer right), format (does the step parse).

Pure functions over a typed `Trajectory`. Only what the protocol's parser read of the policy's own text is looked at, and the hits that
the environment returned: retrieved text can earn nothing, except where a published reward pays for it (Search-R1's retrieval score, which
is 0 as published). A reward is a number or unknown (None), never zero for "could not tell".

R3-RAG (paper section 3.3, and its released code, which differs) gives each searching step its relevance Rel in [0, 1] times a factor of
the whole trajectory, and the last step a reward of its own:

    preset         factor of Rel: right  wrong  unanswered  malformed | last step: right  wrong  unanswered     malformed
    paper                         1.6    0.8    0.9         1.0       |            1.0    0.0    (Rel x factor)  -1.0
    code                          1.6    0.8    0.9         1.0       |            2.0    0.0    (Rel x factor)  -0.9    (3 decimals)
    code_outcome                  no Rel                              |            2.0 *  0.0    0.0             -0.9    (3 decimals)
    code_process                  1.0    1.0    1.0         1.0       |            0.0    0.0    (Rel x factor)  -0.9    (3 decimals)
    demo                          1.2    0.6    0.6         0.6       |            2.0    0.0    Rel x 0.6 - 0.5 -1.0

    * on every step that parses, not the last alone; so more steps earn more (see tests/unit/test_reward_hacks.py)

Of the code's two variants only the numbers for right, wrong and (code_outcome) malformed are published. Taken here: no answer earns what
a wrong one earns, and a malformed step loses the same 0.9 under code_process, since all variants read a step in the same way.
The demo's penalty for an unanswered trajectory is there because without it a small policy learns to search for ever.
Under a protocol that goes on after an invalid turn, each `InvalidStep` earns the format penalty at its own place.

Search-R1, 2505.15117 and ReSearch have no process reward, and one number for the whole trajectory, on its last step. A structure is
valid if there is a final answer, every step parses and all are tidy:

    preset            right, valid   right, invalid   wrong, valid   wrong, invalid   no answer
    search_r1         1              1                0              0                0
    search_r1_format  1              0.8              0.2 +          0.1              0           (Search-R1 v0.3)
    empirical         1              0.8              0.2            0                0           (2505.15117, lambda 0.2)
    research          F1             0                0.1            0                0           (ReSearch's code; right: F1 > 0)
    research_paper    F1             F1               0.1            0                0           (ReSearch's paper; right: F1 > 0)

    + the retrieval score where a gold answer occurs in a passage that was shown; 0.0 as published
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from r3flow.errors import ConfigError
from r3flow.matching import cover_match, exact_match, f1
from r3flow.protocol.base import CUT
from r3flow.trajectory import InvalidStep, Step, Trajectory

Case = Literal["right", "wrong", "unanswered", "malformed", "unknown"]

BM25_HALF = 10.0
"""A BM25 score that counts as relevance 0.5 under `process: score`."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A row of the first table. `factor` multiplies Rel, `format` falls on each invalid step; `digits` rounds every reward."""

    factor: dict[Case, float]
    outcome: dict[Case, float]
    format: float
    digits: int | None = None
    every_step: bool = False
    """Whether `outcome` falls on every step that parses; on the last step alone otherwise."""
    looks_at_answer: bool = True
    """False where a right and a wrong answer earn the same: no judge of answers needs to be asked, or to know."""


_CODE_FACTOR: dict[Case, float] = {"right": 1.6, "wrong": 0.8, "unanswered": 0.9, "malformed": 1.0}
_NO_REL: dict[Case, float] = dict.fromkeys(_CODE_FACTOR, 0.0)
_PLAIN_REL: dict[Case, float] = dict.fromkeys(_CODE_FACTOR, 1.0)

PRESETS: dict[str, Preset] = {
    "paper": Preset(_CODE_FACTOR, {"right": 1.0, "wrong": 0.0, "unanswered": 0.0}, -1.0),
    "code": Preset(_CODE_FACTOR, {"right": 2.0, "wrong": 0.0, "unanswered": 0.0}, -0.9, 3),
    "code_outcome": Preset(_NO_REL, {"right": 2.0, "wrong": 0.0, "unanswered": 0.0}, -0.9, 3, every_step=True),
    "code_process": Preset(_PLAIN_REL, {"right": 0.0, "wrong": 0.0, "unanswered": 0.0}, -0.9, 3, looks_at_answer=False),
    "demo": Preset(
        {"right": 1.2, "wrong": 0.6, "unanswered": 0.6, "malformed": 0.6}, {"right": 2.0, "wrong": 0.0, "unanswered": -0.5}, -1.0
    ),
}
"""R3-RAG's family: step by step."""


def valid(trajectory: Trajectory) -> bool:
    """Whether the structure is valid: a final answer at the end, every step parses, and none holds text outside of the protocol's parts."""
    return trajectory.finish == "answered" and all(isinstance(step, Step) and step.tidy for step in trajectory.steps)


def search_r1(trajectory: Trajectory, grade: float) -> float:
    """1 for a right answer, else 0 (Search-R1, v0.1 and v0.2)."""
    return grade


@dataclass(frozen=True, slots=True)
class SearchR1Format:
    """Search-R1 v0.3: a right answer earns 1, less `structure` if the structure is invalid.

    A wrong one earns `structure` if the structure is valid, and `retrieval` on top if any passage that was shown holds a gold answer as a
    whole phrase, whether or not the protocol's character limit cut it off; else `final`. No answer earns 0: the reference's code pays
    `final` for an empty output.
    """

    structure: float = 0.2
    final: float = 0.1
    retrieval: float = 0.0

    def __call__(self, trajectory: Trajectory, grade: float) -> float:
        if grade == 1:
            return 1.0 if valid(trajectory) else 1.0 - self.structure
        if valid(trajectory):
            answers = trajectory.question.answers
            found = any(cover_match(f"{passage.title}\n{passage.text}", answers) for passage in trajectory.passages())
            return self.structure + (self.retrieval if found else 0.0)
        return 0.0 if trajectory.answer is None else self.final


@dataclass(frozen=True, slots=True)
class Empirical:
    """arXiv 2505.15117: 1 for a right answer in a valid structure, 1 - `weight` without the structure, `weight` for it alone, else 0."""

    weight: float = 0.2

    def __call__(self, trajectory: Trajectory, grade: float) -> float:
        if grade == 1:
            return 1.0 if valid(trajectory) else 1.0 - self.weight
        return self.weight if valid(trajectory) else 0.0


def research(trajectory: Trajectory, grade: float) -> float:
    """ReSearch's code: 0 for an invalid structure or no end; else F1, or 0.1 where that is 0."""
    return (grade or 0.1) if valid(trajectory) else 0.0


def research_paper(trajectory: Trajectory, grade: float) -> float:
    """ReSearch's paper: F1 where it is not 0, whatever the structure; else 0.1 for a valid one."""
    return grade or (0.1 if valid(trajectory) else 0.0)


END_PRESETS: dict[str, Callable[[Trajectory, float], float]] = {
    "search_r1": search_r1,
    "search_r1_format": SearchR1Format(),
    "empirical": Empirical(),
    "research": research,
    "research_paper": research_paper,
}
"""The families that reward the end alone: a trajectory whose grade is known, and that grade in [0, 1], to the whole reward."""

GRADED = frozenset({"research", "research_paper"})
"""The presets that want a grade between right and wrong (`outcome: f1`); all others want right or wrong."""


@dataclass(frozen=True, slots=True)
class RewardBreakdown:
    """The rewards of one trajectory. `process`, `outcome` and `format` have one entry a step, and add up to its reward.

    `process` is already times `factor` (0 for a step without documents). None anywhere means that it could not be told; then the whole
    is unknown.
    """

    case: Case
    factor: float | None
    process: tuple[float | None, ...]
    outcome: tuple[float | None, ...]
    format: tuple[float | None, ...]
    digits: int | None = None

    @classmethod
    def unknown(cls, process: Sequence[float | None]) -> RewardBreakdown:
        """Of a trajectory of which no reward can be told; `process` is what is known of its parts."""
        last = _at_end(None, len(process))
        return cls("unknown", None, tuple(process), last, last)

    @property
    def known(self) -> bool:
        return self.case != "unknown" and None not in (*self.process, *self.outcome, *self.format)

    @property
    def steps(self) -> tuple[float | None, ...]:
        """One reward a step; all None if any part is unknown."""
        rewards: list[float] = []
        for process, outcome, format in zip(self.process, self.outcome, self.format, strict=True):
            if not self.known or process is None or outcome is None or format is None:
                return (None,) * len(self.process)
            rewards.append(process + (outcome + format))
        return tuple(rewards if self.digits is None else [round(value, self.digits) for value in rewards])

    @property
    def total(self) -> float | None:
        """The sum over steps, None if unknown."""
        rewards = [value for value in self.steps if value is not None]
        return sum(rewards) if self.known else None


def _at_end(value: float | None, steps: int) -> tuple[float | None, ...]:
    """`value` on the last of so many steps, 0 on the others."""
    return (*[0.0] * (steps - 1), value) if steps else ()


def searched(trajectory: Trajectory) -> list[int]:
    """The places in `trajectory.steps` of the steps whose search returned documents: those that have a relevance to be judged."""
    return [place for place, step in enumerate(trajectory.steps) if isinstance(step, Step) and step.query is not None and step.hits]


def needs_verdict(trajectory: Trajectory, outcome: str) -> bool:
    """Whether only the judge can tell if the answer is right: under `judge` always, under `match_or_judge` where no gold answer matches."""
    answer = trajectory.answer
    if answer is None or outcome not in ("judge", "match_or_judge"):
        return False
    return outcome == "judge" or not exact_match(answer, trajectory.question.answers)


def grade_of(trajectory: Trajectory, verdict: bool | None, outcome: str) -> float | None:
    """How right the answer is by `outcome`, in [0, 1]: 0 for none, None if it cannot be told.

    `verdict` is the judge's, and only looked at where `needs_verdict`.
    """
    if trajectory.finish == "failed" or not trajectory.steps:
        return None
    if needs_verdict(trajectory, outcome):
        return None if verdict is None else float(verdict)
    answer, answers = trajectory.answer, trajectory.question.answers
    if outcome == "f1":
        return f1(answer, answers)
    return float(cover_match(answer, answers) if outcome == "cover" else exact_match(answer, answers))


def case_of(trajectory: Trajectory, grade: float | None) -> Case:
    """How a trajectory ended. Right means a full grade."""
    if trajectory.finish == "failed" or not trajectory.steps:
        return "unknown"
    if trajectory.finish == "malformed":
        return "malformed"
    if trajectory.finish != "answered":
        return "unanswered"
    return "unknown" if grade is None else "right" if grade == 1 else "wrong"


def score(
    trajectory: Trajectory,
    *,
    verdict: bool | None = None,
    relevance: Sequence[float | None],
    preset: str,
    outcome: str = "match_or_judge",
) -> RewardBreakdown:
    """Combine the parts by a preset.

    `relevance` has one entry for each step, in [0, 1] or None for unknown; entries of steps without documents are not looked at, and none
    is under a preset without process reward. Raises ValueError if the lengths differ, if a relevance lies outside [0, 1], and for a
    preset with an outcome that it does not know what to do with (`params` refuses these).
    """
    if len(relevance) != len(trajectory.steps):
        raise ValueError(f"{len(relevance)} relevances for {len(trajectory.steps)} steps")
    if (outcome == "f1") != (preset in GRADED):
        raise ValueError(f"preset {preset} cannot be had with outcome {outcome}")
    if preset in END_PRESETS:
        return _score_end(trajectory, verdict, END_PRESETS[preset], outcome)
    table = PRESETS[preset]
    if not table.looks_at_answer and needs_verdict(trajectory, outcome):
        verdict = False  # right or wrong, the numbers are the same, so not knowing which is no reason to know nothing
    case = case_of(trajectory, grade_of(trajectory, verdict, outcome))
    factor = table.factor.get(case)
    process: list[float | None] = [0.0] * len(relevance)
    for place in searched(trajectory) if any(table.factor.values()) else ():
        value = relevance[place]
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"relevance of step {place + 1} is {value}, expected 0 to 1")
        process[place] = None if value is None or factor is None else value * factor
    if case == "unknown":
        return RewardBreakdown.unknown(process)
    earned = table.outcome.get(case, 0.0)
    on_steps = _at_end(earned, len(process))
    if table.every_step:
        on_steps = tuple(earned if isinstance(step, Step) else 0.0 for step in trajectory.steps)
    return RewardBreakdown(case, factor, tuple(process), on_steps, _penalties(trajectory, table.format), table.digits)


def _score_end(trajectory: Trajectory, verdict: bool | None, rule: Callable[[Trajectory, float], float], outcome: str) -> RewardBreakdown:
    """One number for the whole trajectory, on its last step."""
    grade, size = grade_of(trajectory, verdict, outcome), len(trajectory.steps)
    nothing = (0.0,) * size
    if grade is None:
        return RewardBreakdown.unknown(nothing)
    return RewardBreakdown(case_of(trajectory, grade), 0.0, nothing, _at_end(rule(trajectory, grade), size), nothing)


def _penalties(trajectory: Trajectory, penalty: float) -> tuple[float, ...]:
    """The format penalty of each step. One that the end of the context cut short is no fault of its form."""
    faults = [isinstance(step, InvalidStep) for step in trajectory.steps]
    if trajectory.finish == "length" and isinstance(last := trajectory.steps[-1], InvalidStep) and last.reason == CUT:
        faults[-1] = False
    return tuple(penalty if fault else 0.0 for fault in faults)


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
