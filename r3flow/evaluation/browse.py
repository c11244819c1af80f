"""Which trajectories the report shows, and each of them as plain data for the page's template."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from r3flow.evaluation.results import Result
from r3flow.evaluation.systems import SYSTEMS
from r3flow.evaluation.table import label, ordered, pretty
from r3flow.files import digest
from r3flow.protocol.base import squeeze
from r3flow.rewards import RewardBreakdown, relevance_by_gold, score
from r3flow.trajectory import Passage, Step

SHOWN_CHARACTERS = 1200
"""Of a passage on the page."""

FINISH = {
    "answered": "Gave a final answer.",
    "budget": "Ran out of steps without an answer.",
    "malformed": "Wrote a step that does not parse, which ends a trajectory.",
    "length": "Ran out of room in the context.",
    "failed": "A service failed; nothing can be concluded.",
}


def pick(results: Sequence[Result], count: int) -> list[str]:
    """Ids of `count` questions: in turn from each kind (type, hops, right or wrong), so that rare kinds and failures are there too.

    Within a kind the order is that of a digest of the id: arbitrary, and the same whenever the questions are the same.
    """
    kinds: dict[tuple[str, int, bool], list[str]] = defaultdict(list)
    for result in results:
        question = result.trajectory.question
        kinds[(question.type or "", question.hops or 0, not result.em)].append(question.id)
    turns = zip_longest(*(sorted(kinds[kind], key=digest) for kind in sorted(kinds)))
    return [name for name in chain.from_iterable(turns) if name is not None][:count]


def cards(results: Mapping[str, Sequence[Result]], count: int, preset: str, outcome: str = "match_or_judge") -> list[dict[str, Any]]:
    """One card a question, with a view of what each system did with it. `preset` and `outcome` are those of the reward."""
    systems = ordered(results)
    if not systems:
        return []
    by_id = {name: {result.trajectory.question.id: result for result in results[name]} for name in systems}
    chosen = pick(results[systems[-1]], count)
    return [
        _card(number, {name: by_id[name][key] for name in systems if key in by_id[name]}, preset, outcome)
        for number, key in enumerate(chosen)
    ]


def _card(number: int, by_system: Mapping[str, Result], preset: str, outcome: str) -> dict[str, Any]:
    question = next(iter(by_system.values())).trajectory.question
    return {
        "number": number,
        "question": squeeze(question.question),
        "answers": question.answers,
        "type": pretty(question.type) if question.type else None,
        "hops": question.hops,
        "views": [_view(name, result, preset, outcome) for name, result in by_system.items()],
    }


def _view(system: str, result: Result, preset: str, outcome: str) -> dict[str, Any]:
    trajectory = result.trajectory
    rewards = None if system in SYSTEMS and SYSTEMS[system].one_shot else breakdown(result, preset, outcome)
    seen: set[str] = set()
    steps = []
    for place, step in enumerate(trajectory.steps):
        view: dict[str, Any] = {"number": step.number, "reward": None if rewards is None else _reward(rewards, place)}
        if isinstance(step, Step):
            view |= {"analysis": step.analysis, "query": step.query, "answer": step.answer, "documents": []}
            for hit in step.hits:
                view["documents"].append(_document(hit.passage, hit.score, trajectory.question.gold_ids, seen))
                seen.add(hit.passage.id)
        else:
            view |= {"raw": step.raw, "reason": step.reason}
        steps.append(view)
    return {
        "system": system,
        "label": label(system),
        "right": result.em,
        "judged": result.verdict,
        "answer": trajectory.answer,
        "finish": trajectory.finish,
        "finish_text": FINISH[trajectory.finish],
        "searches": trajectory.searches,
        "tokens": result.tokens,
        "recall": result.gold_recall,
        "rewards": rewards is not None,
        "total": None if rewards is None else rewards.total,
        "steps": steps,
    }


def breakdown(result: Result, preset: str, outcome: str = "match_or_judge") -> RewardBreakdown:
    """The trajectory's rewards with relevance by the rule `gold`; relevance is unknown where gold is.

    No judge is asked here. The evaluation asked it of the answers that match no gold answer, or of none: then the match alone counts.
    """
    trajectory = result.trajectory
    known = trajectory.question.gold_ids is not None
    relevance = relevance_by_gold(trajectory) if known else [None] * len(trajectory.steps)
    verdict = {"right": True, "wrong": False, "unknown": None, None: None}[result.verdict]
    if outcome in ("judge", "match_or_judge"):
        outcome = "match" if result.verdict is None else "match_or_judge"
    return score(trajectory, verdict=verdict, relevance=relevance, preset=preset, outcome=outcome)


def _reward(rewards: RewardBreakdown, place: int) -> dict[str, Any]:
    """A step's reward and what it is made of; values are None where unknown."""
    parts = {"process": rewards.process[place], "outcome": rewards.outcome[place], "format": rewards.format[place]}
    return {"value": rewards.steps[place], "parts": {name: part for name, part in parts.items() if part != 0}}


def _document(passage: Passage, score: float, gold: Sequence[str] | None, seen: set[str]) -> dict[str, Any]:
    return {
        "title": passage.title,
        "text": passage.text[:SHOWN_CHARACTERS],
        "cut": len(passage.text) > SHOWN_CHARACTERS,
        "score": score,
        "gold": gold is not None and passage.id in gold,
        "again": passage.id in seen,
    }
