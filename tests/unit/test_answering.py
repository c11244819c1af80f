"""A killed evaluation goes on where it stopped, and a service that fails never becomes a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from r3flow.errors import ConfigError, EndpointError
from r3flow.evaluation.answering import Answering, answer_all, judge_all
from r3flow.evaluation.results import Result
from r3flow.llm.judge import VerdictItem
from r3flow.params import load
from r3flow.progress import Silent
from r3flow.trajectory import Hit, Passage, Question
from tests.unit.evaluated import result

SHELF = [Passage("p1", "Red Harbor", "A film.")]


class Answers:
    """Answers a batch from a table; breaks down at the given batch."""

    def __init__(self, breaks_at: int | None = None) -> None:
        self.breaks_at = breaks_at
        self.batches: list[list[str]] = []

    def answer(self, questions: Sequence[Question]) -> list[Result]:
        if self.breaks_at == len(self.batches):
            raise KeyboardInterrupt
        self.batches.append([question.id for question in questions])
        return [result(int(question.id[1:])) for question in questions]


def test_killed_and_run_again_is_the_same_and_repeats_one_batch_at_most(tmp_path: Path) -> None:
    questions = [result(number).trajectory.question for number in range(10)]
    whole = answer_all(Answers(), questions, 4, tmp_path / "whole", Silent())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        answer_all(Answers(breaks_at=1), questions, 4, tmp_path / "killed", Silent())  # type: ignore[arg-type]
    again = Answers()
    assert answer_all(again, questions, 4, tmp_path / "killed", Silent()) == whole  # type: ignore[arg-type]
    assert again.batches == [["q4", "q5", "q6", "q7"], ["q8", "q9"]]
    assert [item.trajectory.question for item in whole] == questions


class Judge:
    """Says what it is told; None is a reply that cannot be read, a failed call too if `failing`."""

    def __init__(self, verdicts: Sequence[bool | None], failing: bool = False) -> None:
        self.verdicts, self.failing, self.failed = list(verdicts), failing, 0
        self.asked: list[VerdictItem] = []

    def verdict(self, items: Sequence[VerdictItem]) -> list[bool | None]:
        self.asked = list(items)
        self.failed += self.verdicts.count(None) if self.failing else 0
        return self.verdicts


RESULTS = [result(1), result(2, "Ashel"), result(3, None), result(4, "Rome"), result(5, malformed=True), result(6, "??")]


def test_judge_is_asked_only_where_the_match_fails_and_there_is_an_answer() -> None:
    judge = Judge([True, False, None])
    judged = judge_all(judge, RESULTS)  # type: ignore[arg-type]
    assert [item.prediction for item in judge.asked] == ["Ashel", "Rome", "??"]
    assert judge.asked[0].answers == ("Port Ashel",)
    assert [item.verdict for item in judged] == [None, "right", None, "wrong", None, "unknown"]
    assert [item.trajectory for item in judged] == [item.trajectory for item in RESULTS]


def test_a_judge_that_failed_stops_the_stage() -> None:
    with pytest.raises(EndpointError, match="the judge failed for 1 of 3 answers"):
        judge_all(Judge([True, False, None], failing=True), RESULTS)  # type: ignore[arg-type]


class Shelf:
    def __init__(self, failing: bool = False) -> None:
        self.failing = failing

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if self.failing:
            raise EndpointError("down")
        return [[Hit(SHELF[0], 1.0)][:k] for _ in queries]


def test_base_under_the_protocol_counts_what_it_wrote() -> None:
    questions = [Question("a", "Who made Red Harbor?", ("x",)), Question("b", "When?", ("y",))]
    answering = Answering(load(), "base", Shelf())
    results = answering.answer(questions)
    assert [item.trajectory.question for item in results] == questions
    assert all(item.tokens >= 1 for item in results)
    assert [answering.answer([question])[0] for question in questions] == results


def test_rag_raises_where_the_retriever_fails() -> None:
    with pytest.raises(EndpointError, match="down"):
        Answering(load(), "rag", Shelf(failing=True)).answer([Question("a", "Who?", ("x",))])


def test_a_failed_rollout_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from r3flow.evaluation import answering as module
    from r3flow.rollout import Rollout
    from r3flow.trajectory import Trajectory

    asked = Question("a", "Who?", ("x",))
    failed = Rollout(Trajectory(asked, (), "failed"), [1], [1], [1], [0.0], [0])
    monkeypatch.setattr(module, "generate_rollouts", lambda *_, **__: [failed])
    with pytest.raises(EndpointError, match="the retriever failed for 1 of 1 questions"):
        Answering(load(), "base", Shelf()).answer([asked])


def test_an_unknown_system_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown system 'best'; known are base, rag"):
        Answering(load(), "best", Shelf())
