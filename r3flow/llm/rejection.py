"""Rejection sampling: of each question's attempts at most one is kept, and only a right one whose every step is well formed.

An attempt that matches a gold answer as text goes before one that only the judge finds right. The judge is asked about a question only
where no attempt matched. Whom the second teacher is asked about is decided here too, by the same rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, Literal

from r3flow.errors import DataError, EndpointError
from r3flow.llm.judge import Judge, VerdictItem
from r3flow.llm.teacher import Attempt, Teacher
from r3flow.protocol.base import StepProtocol, squeeze
from r3flow.trajectory import InvalidStep, Question, Step, Trajectory

Fate = Literal["match", "judge", "wrong", "unclear", "no_answer", "malformed"]
"""What became of an attempt. match, judge: right, and who says so. unclear: the judge's reply could not be read."""
_RIGHT: tuple[Fate, ...] = ("match", "judge")
_FALLEN: tuple[Fate, ...] = ("wrong", "unclear", "no_answer", "malformed")
CHUNK = 512
"""Questions that are judged together."""


@dataclass(frozen=True, slots=True)
class Sifted:
    """A question's attempts with their fates (in the order of the attempts), the accepted one, its trajectory as the protocol reads it
    back.
    """

    attempts: tuple[Attempt, ...]
    fates: tuple[Fate, ...]
    winner: Attempt | None

    @property
    def accepted(self) -> Trajectory | None:
        return None if self.winner is None else self.winner.trajectory

    @property
    def question(self) -> Question:
        return self.attempts[0].trajectory.question

    @property
    def fate(self) -> Fate:
        """How the question ended: the way it was accepted, else the fate of its last attempt."""
        return next((right for right in _RIGHT if right in self.fates), self.fates[-1])


def sift(attempts: Iterable[Attempt], protocol: StepProtocol, judge: Judge | None) -> Iterator[Sifted]:
    """Decide about every question, in the order of `attempts`, in which a question's attempts follow each other.

    Memory holds `CHUNK` questions. Raises DataError for attempts that are scattered, and EndpointError if the judge failed for any: whom to
    keep may not depend on an endpoint's bad day.
    """
    seen: set[str] = set()
    groups = (list(group) for _, group in groupby(attempts, key=_name))
    while chunk := list(islice(groups, CHUNK)):
        for group in chunk:
            name = _name(group[0])
            if name in seen:
                raise DataError(f"attempts.jsonl: the attempts of question '{name}' do not follow each other; run synthesize again")
            seen.add(name)
        fates = [[_first_look(attempt, protocol) for attempt in group] for group in chunk]
        if judge is not None:
            _ask(judge, chunk, fates)
        for group, fate in zip(chunk, fates, strict=True):
            yield _decide(group, fate, protocol)


def unsolved(attempts: Iterable[Attempt], protocol: StepProtocol, judge: Judge | None) -> list[Question]:
    """The questions of which no attempt is accepted, in order. Raises as `sift` does."""
    return [item.question for item in sift(attempts, protocol, judge) if item.winner is None]


def merged(first: Iterable[Attempt], second: Iterable[Attempt]) -> Iterator[Attempt]:
    """Each question's attempts by the first teacher and behind them those by the second, whose questions are some of the first's, in order.

    Raises DataError where they are not.
    """
    rest = groupby(second, key=_name)
    waiting = next(rest, None)
    for name, group in groupby(first, key=_name):
        yield from group
        if waiting is not None and waiting[0] == name:
            yield from waiting[1]
            waiting = next(rest, None)
    if waiting is not None:
        raise DataError(f"escalated.jsonl: question '{waiting[0]}' is not where attempts.jsonl has it; run escalate again")


def _name(attempt: Attempt) -> str:
    return attempt.trajectory.question.id


def as_read(trajectory: Trajectory, protocol: StepProtocol) -> Trajectory | None:
    """`trajectory` as `protocol` reads it back; None if that says anything else than the steps do, blanks apart.

    Steps are numbered 1, 2, ..., with a query each but for the last. What comes back is rendered and parsed to itself. Blanks are those of
    the protocol's own text: tags hold a query on one line with single spaces. An answer that the protocol cannot hold is none: in
    `research` one with a brace that has no partner or with a box of its own, since the published form knows no escape.
    """
    steps: list[Step | InvalidStep] = []
    for number, step in enumerate(trajectory.steps, 1):
        if not isinstance(step, Step) or (step.answer is not None and number < len(trajectory.steps)):
            return None
        read = protocol.parse(protocol.render_step(step), number)
        if not isinstance(read, Step) or _without_blanks(read) != _without_blanks(step):
            return None
        if protocol.parse(protocol.render_step(read), number) != read:
            return None
        steps.append(replace(read, hits=step.hits))
    return replace(trajectory, steps=tuple(steps))


def _without_blanks(step: Step) -> Step:
    """`step` as one that differs from it in blanks (and hits) alone."""
    query, answer = (None if value is None else squeeze(value) for value in (step.query, step.answer))
    return replace(step, analysis=squeeze(step.analysis), query=query, answer=answer, hits=())


def _first_look(attempt: Attempt, protocol: StepProtocol) -> Fate:
    trajectory = attempt.trajectory
    if trajectory.finish == "malformed" or as_read(trajectory, protocol) is None:
        return "malformed"
    if trajectory.answer is None:
        return "no_answer"
    return "match" if attempt.matched else "wrong"


def _ask(judge: Judge, groups: Sequence[Sequence[Attempt]], fates: Sequence[list[Fate]]) -> None:
    """Put the judge's word into `fates` where text alone says wrong and no attempt of the question matched."""
    places = [
        (row, column)
        for row, fate in enumerate(fates)
        if "match" not in fate
        for column, value in enumerate(fate)
        if value == "wrong"
    ]  # fmt: skip
    trajectories = [groups[row][column].trajectory for row, column in places]
    failed = judge.failed
    verdicts = judge.verdict([VerdictItem(t.question.question, t.question.answers, t.answer or "") for t in trajectories])
    if judge.failed > failed:
        raise EndpointError(
            f"the judge failed for {judge.failed - failed} of {len(places)} answers; run again: what it said is in the ledger"
        )
    for (row, column), verdict in zip(places, verdicts, strict=True):
        fates[row][column] = "unclear" if verdict is None else "judge" if verdict else "wrong"


def _decide(group: Sequence[Attempt], fates: Sequence[Fate], protocol: StepProtocol) -> Sifted:
    for right in _RIGHT:
        if right in fates:
            winner = group[fates.index(right)]
            read = as_read(winner.trajectory, protocol)
            assert read is not None, "the first look calls such an attempt malformed"
            return Sifted(tuple(group), tuple(fates), replace(winner, trajectory=read))
    return Sifted(tuple(group), tuple(fates), None)


class Tally:
    """Counts what `metrics/filter.json` holds while sifted questions pass."""

    def __init__(self) -> None:
        self.accepted = self.questions = 0
        self._groups: dict[str, dict[str, Counter[bool]]] = {"by_type": {}, "by_hops": {}}
        self._fates: Counter[Fate] = Counter()
        self._ends: Counter[Fate] = Counter()
        self._teachers: dict[Teacher, dict[int | None, Counter[str]]] = {}
        self._known = self._with_useless = self._retrievals = self._useless = 0

    def add(self, item: Sifted) -> None:
        question, kept = item.question, item.accepted
        self.questions += 1
        self.accepted += kept is not None
        self._fates.update(item.fates)
        self._ends[item.fate] += 1
        for name, value in (("by_type", question.type), ("by_hops", question.hops)):
            if value is not None:
                self._groups[name].setdefault(str(value), Counter())[kept is not None] += 1
        for teacher in dict.fromkeys(attempt.teacher for attempt in item.attempts):
            mine = [fate for attempt, fate in zip(item.attempts, item.fates, strict=True) if attempt.teacher == teacher]
            won = item.winner is not None and item.winner.teacher == teacher
            counts = {"questions": 1, "attempts": len(mine), "accepted": sum(fate in _RIGHT for fate in mine), "won": won}
            self._teachers.setdefault(teacher, {}).setdefault(question.hops, Counter()).update(counts)
        if kept is not None and question.gold_ids is not None:
            useless = useless_retrievals(kept)
            self._known += 1
            self._with_useless += useless > 0
            self._retrievals += kept.searches
            self._useless += useless

    @property
    def attempts(self) -> int:
        return self._fates.total()

    def worst(self) -> str:
        """The commonest reason why a question fell."""
        return max(_FALLEN, key=lambda fate: self._ends[fate])

    def summary(self) -> dict[str, Any]:
        """Acceptance over all, by type and by hops, why the rest fell, and useless retrievals.

        `fell` counts questions by the fate of their last attempt, `attempts` counts every attempt. `useless` is over accepted trajectories
        of questions whose gold passages are known (its share is null where none is). `by_teacher` is there if two teachers wrote: the
        questions that each was asked, its attempts, how many of these were right, and the questions that it won.
        """
        return {
            **_acceptance(self.accepted, self.questions),
            "accepted_by": {name: self._ends[name] for name in _RIGHT},
            "fell": {name: self._ends[name] for name in _FALLEN},
            "attempts": {"total": self.attempts, **{name: self._fates[name] for name in (*_RIGHT, *_FALLEN)}},
            **{
                name: {key: _acceptance(counts[True], counts.total()) for key, counts in sorted(group.items())}
                for name, group in self._groups.items()
            },
            "useless": {
                "trajectories": self._known,
                "with_useless": self._with_useless,
                "retrievals": self._retrievals,
                "useless": self._useless,
                "share": self._useless / self._retrievals if self._retrievals else None,
            },
            **({"by_teacher": {name: _share(hops) for name, hops in self._teachers.items()}} if len(self._teachers) > 1 else {}),
        }


def _acceptance(accepted: int, questions: int) -> dict[str, Any]:
    return {"questions": questions, "accepted": accepted, "acceptance": accepted / questions if questions else None}


def _share(by_hops: Mapping[int | None, Counter[str]]) -> dict[str, Any]:
    """What one teacher did, over all and by the questions' hops where these are known."""

    def told(counts: Counter[str]) -> dict[str, int]:
        return {name: counts[name] for name in ("questions", "attempts", "accepted", "won")}

    known = sorted((hops, counts) for hops, counts in by_hops.items() if hops is not None)
    return {**told(sum(by_hops.values(), Counter())), "by_hops": {str(hops): told(counts) for hops, counts in known}}


def useless_retrievals(trajectory: Trajectory) -> int:
    """How many retrievals brought no gold passage that had not been seen before. Raises ValueError where no gold passage is known."""
    if trajectory.question.gold_ids is None:
        raise ValueError(f"question {trajectory.question.id}: no gold passages known")
    missing, useless = set(trajectory.question.gold_ids), 0
    for step in trajectory.steps:
        if isinstance(step, Step) and step.query is not None:
            found = missing & {hit.passage.id for hit in step.hits}
            useless += not found
            missing -= found
    return useless
