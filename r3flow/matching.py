"""The only comparison of a predicted answer with gold answers: exact match and F1 as HotpotQA and SQuAD define them, and cover match.

Filter, rewards and evaluation all use it, so that "right" means one thing. The order of normalisation is that of SQuAD's and
HotpotQA's evaluation scripts (lower case, punctuation, articles, white space); R3-RAG's code strips articles first, which keeps
the article of "the." and of "a-ha".
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_CLOSED = frozenset({"yes", "no", "noanswer"})
"""Answers of a closed form: a text that merely contains one of these words earns no partial credit (HotpotQA's F1)."""


def normalize(text: str) -> str:
    """Lower-case, drop ASCII punctuation, drop the articles a, an and the, squeeze white space. May be empty, and is idempotent."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str | None, answers: Iterable[str]) -> bool:
    """True if the prediction equals any gold answer after `normalize`. No prediction (None) is wrong."""
    if prediction is None:
        return False
    wanted = normalize(prediction)
    return any(normalize(answer) == wanted for answer in answers)


def cover_match(prediction: str | None, answers: Iterable[str]) -> bool:
    """True if any gold answer occurs in the prediction as a whole phrase, both after `normalize` (cover-EM, as R1-Searcher rewards).

    A long answer earns under it: one that lists every candidate, or says yes and no, covers the right one, so a policy that is rewarded
    by it learns to write more. No prediction (None) is wrong, and a gold answer of no words is covered by its equal alone.
    """
    if prediction is None:
        return False
    said = normalize(prediction)
    wanted = [normalize(answer) for answer in answers]
    return any(said == gold or (gold != "" and re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", said) is not None) for gold in wanted)


def f1(prediction: str | None, answers: Iterable[str]) -> float:
    """Best token F1 in [0, 1] over the gold answers (bags of words after `normalize`). No prediction (None) scores 0.

    yes, no and noanswer score 1 or 0, never between (HotpotQA's evaluation script).
    """
    if prediction is None:
        return 0.0
    return max((_f1(normalize(prediction), normalize(answer)) for answer in answers), default=0.0)


def _f1(prediction: str, answer: str) -> float:
    if prediction != answer and (prediction in _CLOSED or answer in _CLOSED):
        return 0.0
    predicted, gold = prediction.split(), answer.split()
    same = sum((Counter(predicted) & Counter(gold)).values())
    if not same:
        return 0.0
    precision, recall = same / len(predicted), same / len(gold)
    return 2 * precision * recall / (precision + recall)
