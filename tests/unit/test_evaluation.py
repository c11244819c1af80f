"""The figures of `metrics/evaluate.json`, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from r3flow import params as parameters
from r3flow.errors import DataError
from r3flow.evaluation.metrics import compare, summarise
from r3flow.evaluation.results import Result, read_results, write_results
from r3flow.evaluation.systems import choose
from r3flow.rollout import Rollout
from r3flow.training.diagnostics import rollout_metrics
from r3flow.trajectory import InvalidStep, Question, Step, Trajectory
from r3flow.turns import possible_faults
from tests.unit.evaluated import GOLD, OTHER, question, result


def summary(results: list[Result], judged: bool = True) -> dict[str, object]:
    return summarise(results, resamples=200, seed=1, judged=judged, max_steps=3)


MIXED = [
    result(1, "the Port Ashel.", tokens=10),
    result(2, "Port", verdict="wrong", tokens=20, kind="comparison"),
    result(3, "Ashel harbour", verdict="right", tokens=30, hops=3),
    result(4, None, tokens=40),
    result(5, "??", verdict="unknown", tokens=50),
    result(6, malformed=True, passages=(OTHER,), tokens=60, gold=None),
]


def test_every_figure_by_hand() -> None:
    got = summary(MIXED)
    assert got["n"] == 6
    assert got["em"] == pytest.approx(1 / 6, abs=1e-6)
    assert got["f1"] == pytest.approx((1 + 2 / 3 + 0.5) / 6, abs=1e-6)
    assert got["acc"] == pytest.approx(2 / 5, abs=1e-6)  # the unknown one is dropped, the unanswered one is wrong
    assert got["acc_unknown"] == 1
    assert got["answered"] == pytest.approx(4 / 6, abs=1e-6)
    assert got["format_valid"] == pytest.approx(5 / 6, abs=1e-6)  # a budget that ran out is no fault of format
    assert got["searches"] == pytest.approx(7 / 6, abs=1e-6)
    assert got["tokens"] == pytest.approx(35.0)
    assert got["tokens_per_right"] == pytest.approx(210.0)
    assert got["gold_recall"] == pytest.approx(0.5)  # one of two, where gold is known
    low, high = got["em_ci95"]  # type: ignore[misc]
    assert low <= got["em"] <= high  # type: ignore[operator]


def test_by_type_and_hops_hold_the_same_figures() -> None:
    got = summary(MIXED)
    by_type, by_hops = got["by_type"], got["by_hops"]
    assert {name: part["n"] for name, part in by_type.items()} == {"comparison": 1, "compositional": 5}  # type: ignore[attr-defined]
    assert {name: part["n"] for name, part in by_hops.items()} == {"2": 5, "3": 1}  # type: ignore[attr-defined]
    assert set(by_type["comparison"]) == set(got) - {"by_type", "by_hops", "by_budget"}  # type: ignore[index]
    assert by_type["comparison"]["em_ci95"][0] == 0.0  # type: ignore[index]


def test_faults_of_form_are_counted_where_the_params_let_them_happen() -> None:
    search = Step(1, "So.", query="q", tidy=False)
    again = InvalidStep(2, "hm", "is no step")
    trajectories = [
        Trajectory(question(1), (search, again, again, Step(2, "So.", answer="a")), "answered"),
        Trajectory(question(2, kind="comparison"), (Step(1, "", answer="a", tidy=False),), "answered"),
        Trajectory(question(3), (Step(1, "So.", answer="a"),), "answered"),
    ]
    protocol = parameters.load("params.yaml").protocol
    wanted = {"invalid_turns": 2 / 3, "untidy_turns": 2 / 3}
    for name, on_invalid, names in (
        ("r3rag", "stop", ()),
        ("r3rag", "feedback", ("invalid_turns",)),
        ("research", "stop", ("untidy_turns",)),
        ("search_r1", "feedback", ("invalid_turns", "untidy_turns")),
    ):
        faults = possible_faults(protocol.model_copy(update={"name": name, "on_invalid": on_invalid}))
        got = summarise([Result(item, 5) for item in trajectories], resamples=200, seed=1, judged=False, max_steps=3, faults=faults)
        row = rollout_metrics([Rollout(item, [1], [2], [1], [0.0], [0]) for item in trajectories], faults=faults)
        assert {key: value for key, value in got.items() if key.endswith("_turns")} == {key: round(wanted[key], 6) for key in names}
        assert {key: value for key, value in row.items() if key.endswith("_turns")} == {key: pytest.approx(wanted[key]) for key in names}
        if name == "search_r1":
            assert got["by_type"]["compositional"]["invalid_turns"] == 1.0 and got["by_type"]["comparison"]["invalid_turns"] == 0.0
    # both are kept, for they say another thing
    assert got["format_valid"] == pytest.approx(2 / 3, abs=1e-6) and row["malformed_rate"] == 0.0


def test_null_where_nothing_is_known() -> None:
    got = summary([result(1, "x", gold=None, kind=None, hops=None)], judged=False)
    assert got["acc"] is None and got["tokens_per_right"] is None and got["gold_recall"] is None
    assert list(got["by_type"]) == ["untyped"] and got["by_hops"] == {}  # type: ignore[call-overload]
    assert summary([result(1, "x", verdict="unknown")])["acc"] is None


def test_recall_counts_each_gold_passage_once() -> None:
    twice = result(1, passages=(GOLD, GOLD, OTHER))
    assert twice.gold_recall == 0.5
    assert result(1, gold=()).gold_recall is None


def test_no_result_is_an_error() -> None:
    with pytest.raises(DataError, match="no question was answered"):
        summary([])


def test_paired_comparison_goes_by_question_and_not_by_order() -> None:
    ours = [result(1), result(2), result(3, "x")]
    theirs = [result(3, "x"), result(2), result(1)]
    got = compare(ours, theirs, resamples=200, seed=1)
    assert (got["n"], got["em"], got["em_ci95"]) == (3, 0.0, [0.0, 0.0])
    assert (got["only_ours_right"], got["only_theirs_right"]) == (0, 0)
    theirs = [result(3), result(1, "x"), result(2, "x")]
    got = compare(ours, theirs, resamples=200, seed=1)
    assert got["em"] == pytest.approx(1 / 3, abs=1e-6)
    assert (got["only_ours_right"], got["only_theirs_right"]) == (2, 1)
    with pytest.raises(DataError, match="different questions"):
        compare(ours, theirs[:2], resamples=200, seed=1)


def test_results_survive_their_file(tmp_path: Path) -> None:
    path = tmp_path / "ppo.jsonl"
    write_results(path, MIXED)
    assert read_results(path) == MIXED


@pytest.mark.parametrize(("field", "value"), [("tokens", -1), ("tokens", "3"), ("tokens", True), ("judge", "maybe")])
def test_a_bad_line_is_named(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "ppo.jsonl"
    path.write_text(json.dumps({**MIXED[0].to_json(), field: value}) + "\n")
    with pytest.raises(DataError, match=rf"ppo\.jsonl:1: field '{field}'"):
        read_results(path)


def test_every_system_gets_the_same_questions_at_random() -> None:
    pool = [question(number) for number in range(50)]
    chosen = choose(pool, 10, 1)
    assert chosen == choose(reversed(pool), 10, 1)[::-1]
    assert len(chosen) == 10 and chosen != pool[:10]
    assert chosen != choose(pool, 10, 2)
    assert choose(pool, 99, 1) == pool
    with pytest.raises(DataError, match="holds no question"):
        choose(list[Question](), 10, 1)


def test_a_budget_counts_what_was_answered_within_it():
    """Steps of the answering ones: 2, 2, 4 right; 2 wrong; one runs out at 3, one is malformed at 2."""

    def longer(number: int, searches: int) -> Result:
        step = Step(1, "Go on.", query="film")
        steps = (*(step,) * searches, Step(searches + 1, "It is.", answer="Port Ashel"))
        return Result(Trajectory(question(number), steps, "answered"), 10)

    ran_out = Result(Trajectory(question(6), (Step(1, "Go on.", query="film"),) * 3, "budget"), 10)
    found = summarise(
        [result(1), result(2), longer(3, 3), result(4, "Elsewhere"), result(5, malformed=True), ran_out],
        resamples=200, seed=1, judged=False, max_steps=5,
    )  # fmt: skip
    by_budget = found["by_budget"]
    assert list(by_budget) == ["1", "2", "3", "4", "5"]
    assert [by_budget[steps]["em"] for steps in by_budget] == pytest.approx([0, 2 / 6, 2 / 6, 3 / 6, 3 / 6], abs=1e-6)
    assert [by_budget[steps]["answered"] for steps in by_budget] == pytest.approx([0, 3 / 6, 3 / 6, 4 / 6, 4 / 6], abs=1e-6)
    assert by_budget["5"]["em"] == found["em"] and by_budget["5"]["em_ci95"] == found["em_ci95"]
