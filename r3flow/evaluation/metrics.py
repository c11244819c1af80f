"""From results to the figures of `metrics/evaluate.json`. Results only: no times, retries or costs, so equal work gives equal files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from r3flow.errors import DataError
from r3flow.evaluation.bootstrap import difference, interval
from r3flow.evaluation.results import Result
from r3flow.turns import faulty_turns

PLACES = 6
"""Decimals in metrics files: far below any difference of interest, and safe from the last bit of a floating-point sum."""

UNTYPED = "untyped"
"""The name under which questions without a `type` are counted."""


def summarise(
    results: Sequence[Result], *, resamples: int, seed: int, judged: bool, max_steps: int, faults: Sequence[str] = ()
) -> dict[str, Any]:
    """The object of one system, with `by_type`, where known `by_hops`, and `by_budget` up to `max_steps`. Raises DataError without
    results.

    `faults` are the kinds of turns that are counted beside `format_valid`, which asks whether every turn was a step (see `r3flow.turns`).
    """
    if not results:
        raise DataError("evaluate: no question was answered, so there is nothing to measure; look at evaluate.questions and the test split")

    def part(chosen: Sequence[Result]) -> dict[str, Any]:
        return {**_figures(chosen, resamples, seed, judged), **_faults(chosen, faults)}

    summary = part(results)
    summary["by_type"] = _grouped(results, lambda result: result.trajectory.question.type or UNTYPED, part)
    hops = [result for result in results if result.trajectory.question.hops is not None]
    summary["by_hops"] = _grouped(hops, lambda result: str(result.trajectory.question.hops), part)
    summary["by_budget"] = {str(budget): _at_budget(results, budget, resamples, seed) for budget in range(1, max_steps + 1)}
    return summary


def _at_budget(results: Sequence[Result], budget: int, resamples: int, seed: int) -> dict[str, Any]:
    """What would have come of at most `budget` steps, the answering one included (R3-RAG's T').

    A greedy policy does not know its budget, and its stream only grows: with fewer steps it would have taken the same ones up to there,
    so one evaluation tells all budgets. Nothing is answered for it where the budget ends: who has not answered has no answer.
    """
    in_time = [len(result.trajectory.steps) <= budget for result in results]
    em = [float(result.em and soon) for result, soon in zip(results, in_time, strict=True)]
    low, high = interval(em, resamples, seed)
    answered = [float(result.trajectory.answer is not None and soon) for result, soon in zip(results, in_time, strict=True)]
    return {"em": _mean(em), "em_ci95": [round(low, PLACES), round(high, PLACES)], "answered": _mean(answered)}


def compare(ours: Sequence[Result], theirs: Sequence[Result], *, resamples: int, seed: int) -> dict[str, Any]:
    """Paired difference in exact match, `ours - theirs`, over the same questions. Raises DataError if the questions differ."""
    other = {result.trajectory.question.id: result for result in theirs}
    mine = [result.trajectory.question.id for result in ours]
    if set(mine) != set(other) or len(mine) != len(theirs):
        raise DataError("data/evaluation: two systems were evaluated on different questions; run `dvc repro` so that both are made anew")
    pairs = [(result.em, other[result.trajectory.question.id].em) for result in ours]
    mean, low, high = difference([float(a) for a, _ in pairs], [float(b) for _, b in pairs], resamples, seed)
    return {
        "n": len(pairs),
        "em": round(mean, PLACES),
        "em_ci95": [round(low, PLACES), round(high, PLACES)],
        "only_ours_right": sum(a and not b for a, b in pairs),
        "only_theirs_right": sum(b and not a for a, b in pairs),
    }


def _grouped(
    results: Sequence[Result], key: Callable[[Result], str], part: Callable[[Sequence[Result]], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return {name: part(groups[name]) for name in sorted(groups)}


def _figures(results: Sequence[Result], resamples: int, seed: int, judged: bool) -> dict[str, Any]:
    em = [float(result.em) for result in results]
    low, high = interval(em, resamples, seed)
    verdicts = [result.accepted for result in results]
    known = [verdict for verdict in verdicts if verdict is not None]
    recalls = [recall for result in results if (recall := result.gold_recall) is not None]
    right, tokens = sum(result.em for result in results), sum(result.tokens for result in results)
    return {
        "n": len(results),
        "em": _mean(em),
        "em_ci95": [round(low, PLACES), round(high, PLACES)],
        "f1": _mean([result.f1 for result in results]),
        "acc": _mean([float(verdict) for verdict in known]) if judged and known else None,
        "acc_unknown": len(verdicts) - len(known),
        "answered": _mean([float(result.trajectory.answer is not None) for result in results]),
        "format_valid": _mean([float(result.format_valid) for result in results]),
        "searches": _mean([float(result.trajectory.searches) for result in results]),
        "tokens": _mean([float(result.tokens) for result in results]),
        "tokens_per_right": round(tokens / right, PLACES) if right else None,
        "gold_recall": _mean(recalls) if recalls else None,
    }


def _faults(results: Sequence[Result], names: Sequence[str]) -> dict[str, float]:
    found = faulty_turns([result.trajectory for result in results], names)
    return {name: round(value, PLACES) for name, value in found.items()}


def _mean(values: Sequence[float]) -> float:
    return round(fmean(values), PLACES)
