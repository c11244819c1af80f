"""EM and F1 against HotpotQA's evaluation script, whose definitions are written out here a second time, from the definition."""

from __future__ import annotations

import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3flow.matching import cover_match, exact_match, f1, normalize


def official_normalize(text: str) -> str:
    text = text.lower()
    text = "".join(letter for letter in text if letter not in set(string.punctuation))
    text = re.sub(r"\b(a|an|the)\b", " ", text)
    return " ".join(text.split())


def official_f1(prediction: str, gold: str) -> float:
    left, right = official_normalize(prediction), official_normalize(gold)
    for closed in ("yes", "no", "noanswer"):
        if closed in (left, right) and left != right:
            return 0.0
    common = Counter(left.split()) & Counter(right.split())
    shared = sum(common.values())
    if shared == 0:
        return 0.0
    precision, recall = 1.0 * shared / len(left.split()), 1.0 * shared / len(right.split())
    return (2 * precision * recall) / (precision + recall)


WORDS = st.sampled_from(["the", "The.", "a", "an", "a-ha", "Port", "port", "Ashel", "ashel!", "yes", "No", "noanswer", "1,024", "é", "\t"])
ANSWERS = st.one_of(st.text(max_size=20), st.lists(WORDS, max_size=5).map(" ".join))


@given(ANSWERS, st.lists(ANSWERS, min_size=1, max_size=3))
def test_agrees_with_the_official_definitions(prediction: str, answers: list[str]) -> None:
    assert normalize(prediction) == official_normalize(prediction)
    assert exact_match(prediction, answers) == any(official_normalize(prediction) == official_normalize(gold) for gold in answers)
    assert f1(prediction, answers) == pytest.approx(max(official_f1(prediction, gold) for gold in answers))


@given(ANSWERS)
def test_normalize_is_idempotent(text: str) -> None:
    assert normalize(normalize(text)) == normalize(text)


@given(ANSWERS, st.lists(ANSWERS, min_size=1, max_size=3))
def test_a_match_with_words_has_f1_one(prediction: str, answers: list[str]) -> None:
    if exact_match(prediction, answers) and normalize(prediction):
        assert f1(prediction, answers) == 1.0


def phrase_of(prediction: list[str], gold: list[str]) -> bool:
    """Cover match for texts of plain words, by the words: some run of the prediction's equals the gold answer's."""
    return any(prediction[at : at + len(gold)] == gold for at in range(len(prediction) - len(gold) + 1))


PLAIN = st.lists(st.sampled_from(["port", "ashel", "ashe", "l", "no", "7", "é"]), max_size=6)


@given(PLAIN, PLAIN.filter(bool))
def test_cover_is_a_whole_phrase(prediction: list[str], gold: list[str]) -> None:
    assert cover_match(f"The {' '.join(prediction)}.", [" ".join(gold).upper()]) == phrase_of(prediction, gold)


@given(ANSWERS, st.lists(ANSWERS, min_size=1, max_size=3))
def test_a_match_is_covered(prediction: str, answers: list[str]) -> None:
    assert cover_match(prediction, answers) or not exact_match(prediction, answers)


@pytest.mark.parametrize(
    ("prediction", "gold", "covered"),
    [
        ("He was born in “Port Ashel”.", "Port Ashel", True),  # curly quotes are no ASCII punctuation, and no part of a word
        ("Port Ashelton", "Port Ashel", False),
        ("Newport Ashel", "Port Ashel", False),
        ("Port of Ashel", "Port Ashel", False),
        ("1,024 metres", "1024", True),
        ("10245", "1024", False),
        ("yes and no", "no", True),  # the known weakness
        ("he said “anything”", "The", False),  # a gold answer that normalises to nothing is in every text
        ("a", "the", True),
        ("C (the language)", "C++", True),  # punctuation does not count, as in exact match
    ],
)
def test_known_cases_of_cover(prediction: str, gold: str, covered: bool) -> None:
    assert cover_match(prediction, [gold]) is covered
    assert cover_match(prediction, ["Nowhere", gold]) is covered
    assert not cover_match(None, [gold])


@pytest.mark.parametrize(
    ("prediction", "gold", "em", "score"),
    [
        ("The Beatles", "beatles.", True, 1.0),
        ("London", "Londo", False, 0.0),  # R3-RAG's parser ate the last n
        ("no", "no way", False, 0.0),
        ("yes it is", "yes", False, 0.0),
        ("Mary Ann Lee", "Mary Lee", False, 0.8),
        ("", "Paris", False, 0.0),
        ("Ashel Ashel Port", "Ashel Port", False, 0.8),
    ],
)
def test_known_cases(prediction: str, gold: str, em: bool, score: float) -> None:
    assert exact_match(prediction, [gold]) is em
    assert f1(prediction, [gold]) == pytest.approx(score)


def test_best_of_several_answers_counts_and_no_prediction_is_wrong() -> None:
    assert exact_match("NYC", ["New York", "nyc"])
    assert f1("New York", ["NYC", "York"]) == pytest.approx(2 / 3)
    assert not exact_match(None, ["None"])
    assert f1(None, ["None"]) == 0.0
    assert not exact_match("x", [])
    assert f1("x", []) == 0.0
