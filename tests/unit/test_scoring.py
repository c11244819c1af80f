"""What is asked of the judge, what is not, and what a judge that cannot tell does to a batch."""

import pytest

from r3flow.errors import ConfigError
from r3flow.params import Reward
from r3flow.training.scoring import Scorer
from r3flow.trajectory import Hit, InvalidStep, Passage, Question, Step, Trajectory

QUESTION = Question("q", "Who directed Red Harbor?", ("Ann Lee",), gold_ids=("p1",))


class FakeJudge:
    """Says what it is told to, and keeps what it was asked."""

    def __init__(self, relevance=0.5, verdict=True):
        self.says_relevance, self.says_verdict = relevance, verdict
        self.searches, self.answers = [], []

    def relevance(self, items):
        self.searches += items
        return [self.says_relevance] * len(items)

    def verdict(self, items):
        self.answers += items
        return [self.says_verdict] * len(items)


def search(number, name="p1"):
    return Step(number, f"why {number}", query=f"query {number}", hits=(Hit(Passage(name, name, "text"), 3.0),))


def reward(**changes):
    return Reward(**{"preset": "demo", "outcome": "match_or_judge", "process": "judge", **changes})


def answered(text, *before):
    return Trajectory(QUESTION, (*before, Step(len(before) + 1, "so", answer=text)), "answered")


RIGHT, WRONG = answered("ann lee", search(1), search(2, "p2")), answered("Ann L.", search(1))


def test_only_searches_with_documents_and_answers_without_a_match_are_asked():
    judge = FakeJudge()
    scorer = Scorer(reward(), judge)
    malformed = Trajectory(QUESTION, (search(1), InvalidStep(2, "Ann Lee", "no step")), "malformed")
    budget = Trajectory(QUESTION, (search(1), Step(2, "why", query="not searched")), "budget")
    failed = Trajectory(QUESTION, (search(1), Step(2, "why", query="q")), "failed")
    scored = scorer([RIGHT, WRONG, malformed, budget, failed])
    assert [item.case for item in scored] == ["right", "right", "malformed", "unanswered", "unknown"]
    assert [(item.step.number, len(item.earlier)) for item in judge.searches] == [(1, 0), (2, 1), (1, 0), (1, 0), (1, 0)]
    assert [item.prediction for item in judge.answers] == ["Ann L."]
    assert scorer.calls == 6
    assert scored[0].steps == pytest.approx((0.6, 0.6, 2.0))


def test_a_judge_that_cannot_tell_makes_the_trajectory_unknown_and_no_other():
    scored = Scorer(reward(), FakeJudge(relevance=None, verdict=None))([RIGHT, WRONG, answered("Ann Lee"), answered("Bob")])
    assert [item.known for item in scored] == [False, False, True, False]
    scored = Scorer(reward(process="none"), FakeJudge(verdict=None))([RIGHT, WRONG])
    assert [item.known for item in scored] == [True, False]


def test_rules_need_no_judge():
    judge = FakeJudge()
    assert Scorer(reward(process="gold", outcome="match"), judge)([RIGHT, WRONG])[0].steps == pytest.approx((1.2, 0.0, 2.0))
    assert Scorer(reward(process="none", outcome="match"), judge)([WRONG])[0].steps == (0.0, 0.0)
    scored = Scorer(reward(process="score", outcome="match"), None, retriever="dense")([RIGHT])[0]
    assert scored.steps == pytest.approx((1.2, 1.2, 2.0))
    assert judge.searches == judge.answers == []


def test_under_judge_every_answer_is_asked_and_its_word_is_the_last():
    judge = FakeJudge(verdict=False)
    scored = Scorer(reward(process="none", outcome="judge"), judge)([RIGHT, WRONG, Trajectory(QUESTION, (search(1),), "budget")])
    assert [item.prediction for item in judge.answers] == ["ann lee", "Ann L."]
    assert [item.case for item in scored] == ["wrong", "wrong", "unanswered"]
    scored = Scorer(reward(process="none", outcome="judge"), FakeJudge(verdict=None))([RIGHT, answered("ann lee")])
    assert [item.known for item in scored] == [False, False]


def test_where_no_answer_is_paid_for_no_judge_of_answers_is_asked():
    """Under code_process right and wrong earn the same, so not knowing which is no reason to know nothing."""
    for outcome in ("judge", "match_or_judge"):
        scorer = Scorer(reward(preset="code_process", process="gold", outcome=outcome), None)
        assert [item.steps for item in scorer([RIGHT, WRONG])] == [(1.0, 0.0, 0.0), (1.0, 0.0)]
        assert scorer.calls == 0


def test_the_families_of_the_end_get_their_grade():
    half = answered("Ann Smith", search(1))
    for preset, outcome, wanted in [
        ("research", "f1", 0.5),
        ("research_paper", "f1", 0.5),
        ("search_r1", "cover", 0.0),
        ("search_r1_format", "match", 0.2),
        ("empirical", "match", 0.2),
    ]:
        assert Scorer(reward(preset=preset, outcome=outcome, process="none"), None)([half])[0].steps == (0.0, wanted)
    assert Scorer(reward(preset="search_r1", process="none"), FakeJudge(verdict=True))([half])[0].steps == (0.0, 1.0)


@pytest.mark.parametrize("changes", [{"process": "gold"}, {"outcome": "match"}, {"process": "gold", "outcome": "judge"}, {}])
def test_a_section_that_needs_a_judge_and_has_none_is_refused(changes):
    with pytest.raises(ConfigError, match="need a judge"):
        Scorer(reward(**changes), None)


def test_nothing_is_asked_of_an_empty_batch():
    judge = FakeJudge()
    assert Scorer(reward(), judge)([]) == []
    assert judge.searches == judge.answers == []
