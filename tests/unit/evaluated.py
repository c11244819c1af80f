"""Small made-up results for the tests of the evaluation."""

from __future__ import annotations

from r3flow.evaluation.results import Result, Verdict
from r3flow.trajectory import Hit, InvalidStep, Passage, Question, Step, Trajectory

GOLD = Passage("g1", "Red Harbor", "Red Harbor is a film directed by Ann Lee.")
OTHER = Passage("x1", "Blue Bay", "Blue Bay is a bay.")


def question(
    number: int = 1, *, kind: str | None = "compositional", hops: int | None = 2, gold: tuple[str, ...] | None = ("g1", "g2")
) -> Question:
    return Question(f"q{number}", f"Where was the director of film {number} born?", ("Port Ashel",), gold, kind, hops)


def result(
    number: int = 1,
    answer: str | None = "Port Ashel",
    *,
    kind: str | None = "compositional",
    hops: int | None = 2,
    gold: tuple[str, ...] | None = ("g1", "g2"),
    passages: tuple[Passage, ...] = (GOLD,),
    verdict: Verdict | None = None,
    tokens: int = 10,
    malformed: bool = False,
) -> Result:
    """One search that shows `passages`, then an answer; without one a second search at the limit, or a malformed step."""
    asked = question(number, kind=kind, hops=hops, gold=gold)
    search = Step(1, "I need the director.", query="Red Harbor director", hits=tuple(Hit(passage, 7.5) for passage in passages))
    if malformed:
        return Result(Trajectory(asked, (search, InvalidStep(2, "Step 9:", "is numbered 9, expected 2")), "malformed"), tokens, verdict)
    if answer is None:
        return Result(Trajectory(asked, (search, Step(2, "Again.", query="Red Harbor director")), "budget"), tokens, verdict)
    return Result(Trajectory(asked, (search, Step(2, "Ann Lee was born there.", answer=answer)), "answered"), tokens, verdict)
