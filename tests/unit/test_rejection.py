"""Rejection sampling: which trajectories the cold start may learn from."""

import json

import pytest

from r3flow.errors import DataError, EndpointError
from r3flow.llm import rejection
from r3flow.llm.judge import Judge
from r3flow.llm.rejection import Tally, as_read, merged, sift, unsolved, useless_retrievals
from r3flow.llm.teacher import Attempt
from r3flow.protocol import PROTOCOLS
from r3flow.simulated.http import Reply
from r3flow.trajectory import Hit, InvalidStep, Passage, Question, Step, Trajectory
from tests.llm_fakes import BadServer, Speaker, client

R3RAG = PROTOCOLS["r3rag"]
GOLD = ("g1", "g2")


def search(number, *ids):
    return Step(number, "I look.", query="a query", hits=tuple(Hit(Passage(name, name, "Text."), 1.0) for name in ids))


def attempt(name, number, *steps, finish="answered", answers=("Paris",), kind="chain", hops=2, gold=GOLD, teacher="first"):
    return Attempt(number, Trajectory(Question(name, f"Question {name}?", answers, gold, kind, hops), steps, finish), teacher)


def say(answer, number=2):
    return Step(number, "So it is.", answer=answer)


class Yes(Speaker):
    """Accepts every answer that holds 'yes'."""

    asked = 0

    def judge_answer(self, prompt):
        Yes.asked += 1
        prediction = prompt.rpartition("Prediction:")[2]
        return "no idea" if "unsure" in prediction else json.dumps({"correct": "yes" in prediction})


@pytest.fixture
def judge(tmp_path):
    Yes.asked = 0
    with BadServer(speaker=Yes()) as server, client(server.url, tmp_path, role="judge", max_retries=0) as made:
        judge = Judge(made)
        judge.server = server
        yield judge


ATTEMPTS = [
    attempt("a", 0, search(1, "g1"), say("paris.")),
    attempt("b", 0, search(1, "x"), say("yes, that one"), kind="compare", hops=4),
    attempt("b", 1, search(1, "g1"), search(2, "g1"), say("the Paris", 3), kind="compare", hops=4),
    attempt("c", 0, search(1, "g2"), say("London")),
    attempt("c", 1, search(1, "x"), search(2, "g1"), say("yes", 3)),
    attempt("d", 0, search(1, "x"), say("London")),
    attempt("d", 1, search(1, "x"), InvalidStep(2, "hm", "why"), finish="malformed"),
    attempt("e", 0, search(1, "x"), search(2, "x"), finish="budget"),
    attempt("e", 1, search(1, "x"), say("unsure"), kind="compare"),
    attempt("f", 0, say("no", 1)),
    attempt("g", 0, search(1, "x"), finish="budget"),
]


def test_right_and_well_formed_attempts_are_kept_one_a_question(judge):
    sifted = list(sift(ATTEMPTS, R3RAG, judge))
    assert {item.question.id: item.fates for item in sifted} == {
        "a": ("match",),
        "b": ("wrong", "match"),
        "c": ("wrong", "judge"),
        "d": ("wrong", "malformed"),
        "e": ("no_answer", "unclear"),
        "f": ("wrong",),
        "g": ("no_answer",),
    }
    assert [item.accepted and item.accepted.answer for item in sifted] == ["paris.", "the Paris", "yes", None, None, None, None]
    assert Yes.asked == 5  # nothing about a and b, which matched; nothing about attempts without an answer


def test_without_a_judge_only_text_counts():
    sifted = list(sift(ATTEMPTS, R3RAG, None))
    assert [item.accepted is not None for item in sifted] == [True, True, False, False, False, False, False]


def test_metrics_tell_acceptance_and_why_the_rest_fell(judge, monkeypatch):
    monkeypatch.setattr(rejection, "CHUNK", 2)
    tally = Tally()
    for item in sift(iter(ATTEMPTS), R3RAG, judge):
        tally.add(item)
    one, most = {"questions": 1, "accepted": 1, "acceptance": 1.0}, {"questions": 6, "accepted": 2, "acceptance": 2 / 6}
    assert tally.worst() in ("wrong", "unclear", "no_answer", "malformed")
    assert tally.summary() == {
        "questions": 7, "accepted": 3, "acceptance": 3 / 7,
        "accepted_by": {"match": 2, "judge": 1},
        "fell": {"wrong": 1, "unclear": 1, "no_answer": 1, "malformed": 1},
        "attempts": {"total": 11, "match": 2, "judge": 1, "wrong": 4, "unclear": 1, "no_answer": 2, "malformed": 1},
        "by_type": {"chain": most, "compare": one},
        "by_hops": {"2": most, "4": one},
        "useless": {"trajectories": 3, "with_useless": 2, "retrievals": 5, "useless": 2, "share": 0.4},
    }  # fmt: skip


def test_a_failed_judge_stops_the_filter_instead_of_rejecting(judge):
    judge.server.misbehave = lambda number, body: Reply(500, b"") if b"Question f?" in body else None
    with pytest.raises(EndpointError, match="1 of 5") as caught:
        list(sift(ATTEMPTS, R3RAG, judge))
    assert caught.value.retryable
    judge.server.misbehave = lambda number, body: None
    assert len(list(sift(ATTEMPTS, R3RAG, judge))) == 7
    assert max(judge.server.answered.values()) == 1


def test_scattered_attempts_are_refused():
    with pytest.raises(DataError, match="'a'"):
        list(sift([ATTEMPTS[0], ATTEMPTS[3], ATTEMPTS[0]], R3RAG, None))


SECOND = [
    attempt("d", 0, search(1, "g1"), say("London"), teacher="second"),
    attempt("d", 1, search(1, "g1"), say("Paris"), teacher="second"),
    attempt("e", 0, search(1, "g1"), say("yes"), hops=4, teacher="second"),
    attempt("g", 0, search(1, "x"), finish="budget", teacher="second"),
]


def test_the_second_teachers_questions_are_those_that_the_filter_would_lose(judge):
    def lost(asked):
        return [item.question.id for item in sift(ATTEMPTS, R3RAG, asked) if item.accepted is None]

    assert [question.id for question in unsolved(ATTEMPTS, R3RAG, judge)] == ["d", "e", "f", "g"] == lost(judge)
    assert [question.id for question in unsolved(ATTEMPTS, R3RAG, None)] == ["c", "d", "e", "f", "g"] == lost(None)


def test_the_second_teachers_attempts_stand_behind_the_firsts_and_may_win(judge):
    both = list(merged(ATTEMPTS, SECOND))
    assert [item for item in both if item.teacher == "first"] == ATTEMPTS and [item for item in both if item.teacher == "second"] == SECOND
    sifted = {item.question.id: item for item in sift(both, R3RAG, judge)}
    assert {name: item.winner and (item.winner.teacher, item.winner.attempt) for name, item in sifted.items()} == {
        "a": ("first", 0), "b": ("first", 1), "c": ("first", 1), "d": ("second", 1), "e": ("second", 0), "f": None, "g": None,
    }  # fmt: skip
    assert sifted["d"].fates == ("wrong", "malformed", "wrong", "match") and sifted["e"].fates == ("no_answer", "unclear", "judge")
    assert sifted["d"].winner.signed_trajectory() == {**SECOND[1].trajectory.to_json(), "teacher": "second"}
    assert sifted["a"].winner.signed_trajectory() == ATTEMPTS[0].trajectory.to_json()


@pytest.mark.parametrize("names", ["x", "ed", "dd"])
def test_attempts_of_another_run_of_the_first_teacher_are_refused(names):
    """Of an unknown question, in another order, or of a question twice."""
    second = [attempt(name, number, say("Paris", 1), teacher="second") for number, name in enumerate(names)]
    if names == "dd":
        second.insert(1, attempt("e", 0, say("Paris", 1), teacher="second"))
    with pytest.raises(DataError, match=r"escalated.jsonl: question '[dx]' .*run escalate again"):
        list(merged(ATTEMPTS, second))


def test_the_filter_tells_what_each_teacher_contributed(judge):
    def told(attempts):
        tally = Tally()
        for item in sift(attempts, R3RAG, judge):
            tally.add(item)
        return tally.summary()

    alone, both = told(ATTEMPTS), told(merged(ATTEMPTS, SECOND))
    assert "by_teacher" not in alone  # so that a file of one teacher is what it was before there could be two
    assert both.pop("by_teacher") == {
        "first": {
            "questions": 7, "attempts": 11, "accepted": 3, "won": 3,
            "by_hops": {
                "2": {"questions": 6, "attempts": 9, "accepted": 2, "won": 2},
                "4": {"questions": 1, "attempts": 2, "accepted": 1, "won": 1},
            },
        },
        "second": {
            "questions": 3, "attempts": 4, "accepted": 2, "won": 2,
            # the hops are the question's, which both its teachers were asked
            "by_hops": {"2": {"questions": 3, "attempts": 4, "accepted": 2, "won": 2}},
        },
    }  # fmt: skip
    assert (both["accepted"], both["attempts"]["total"], both["questions"]) == (5, 15, 7)


@pytest.mark.parametrize(
    "steps",
    [
        (search(2, "x"), say("a", 3)),
        (search(1, "x"), say("a", 3)),
        (say("a", 1), say("b", 2)),
        (search(1, "x"), Step(2, "two\nStep 7:\nlines", answer="a")),
        (search(1, "x"), Step(2, "x", answer="a\nThe final answer: b")),
        (Step(1, "x\nThe retrieval documents: [1] forged", query="q"), say("a")),
        (InvalidStep(1, "raw", "reason"), say("a")),
    ],
)
def test_steps_that_the_protocol_would_not_read_back_are_not_well_formed(steps):
    assert as_read(Trajectory(Question("q", "Q?", ("a",)), steps, "answered"), R3RAG) is None


@pytest.mark.parametrize("name", ["search_r1", "research"])
def test_blanks_in_a_query_or_answer_make_no_attempt_malformed(name):
    """The teacher's protocol keeps blanks inside of a query; tags hold it with single spaces."""
    hits = search(1, "g1").hits
    steps = (Step(1, "Two\n\nlines.", query="a  query\u00a0with\tblanks", hits=hits), Step(2, "So it is.", answer="New\u00a0 York"))
    (item,) = sift([attempt("q", 0, *steps, answers=("New York",))], PROTOCOLS[name], None)
    kept = (Step(1, "Two\n\nlines.", query="a query with blanks", hits=hits), Step(2, "So it is.", answer="New York"))
    assert item.fates == ("match",)
    assert item.accepted == Trajectory(item.question, kept, "answered")


def test_a_step_with_nothing_to_squeeze_is_kept_to_the_letter():
    """Under the teacher's own protocol everything that it wrote stays."""
    steps = (Step(1, "a\u00a0 b", query="a  query\u00a0with blanks"), Step(2, "c  d", answer="x  y"))
    trajectory = Trajectory(Question("q", "Q?", ("x y",)), steps, "answered")
    assert as_read(trajectory, R3RAG) == trajectory


@pytest.mark.parametrize(
    ("answer", "stays"),
    [
        ("f(x) = {1, {2}}", True), ("a {b", False), ("a} b", False), ("}{", False), (r"\boxed{x}", False), (r"it is \boxed x", True),
        ("</answer>", False),
    ],
)  # fmt: skip
def test_research_keeps_an_answer_that_its_box_can_hold(answer, stays):
    trajectory = attempt("q", 0, search(1, "g1"), say(answer)).trajectory
    assert as_read(trajectory, PROTOCOLS["research"]) == (trajectory if stays else None)


def test_a_retrieval_is_useless_if_it_brings_no_new_gold_passage():
    def count(*steps):
        return useless_retrievals(attempt("q", 0, *steps, say("a", 9)).trajectory)

    assert count(search(1, "g1"), search(2, "g2")) == 0
    assert count(search(1, "x", "g1"), search(2, "g1"), search(3), search(4, "g1", "g2")) == 2
    with pytest.raises(ValueError, match="gold"):
        useless_retrievals(attempt("q", 0, gold=None).trajectory)
