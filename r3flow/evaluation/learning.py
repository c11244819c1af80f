"""Which learning curves the report shows, under which titles, and which of them stand in front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from r3flow.evaluation.curves import Curve, curve
from r3flow.params import Params

TITLES = {
    "loss": "Loss on policy tokens",
    "learning_rate": "Learning rate",
    "reward": "Reward a trajectory",
    "dev_em": "Exact match on dev, greedy",
    "em": "Exact match of sampled rollouts",
    "kl": "KL to the cold start",
    "searches": "Searches a question",
    "tokens": "Generated tokens a question",
    "reward_outcome": "Outcome reward",
    "reward_process": "Process reward",
    "reward_format": "Format reward",
    "answer_rate": "Share that answers",
    "malformed_rate": "Share malformed",
    "invalid_turns": "Turns a question that were no step",
    "untidy_turns": "Untidy turns a question",
    "entropy": "Entropy a token",
    "approx_kl": "Approximate KL of an update",
    "clip_fraction": "Clipped share of tokens",
    "explained_variance": "Explained variance of the critic",
}
FIRST = ("loss", "dev_em", "reward", "kl", "searches", "em", "reward_process")
"""Columns of the curves that stand in front; the others are folded away."""


def curve_groups(curves: Mapping[str, Mapping[str, Sequence[float | None]]], params: Params) -> list[dict[str, Any]]:
    """Charts by section: those of FIRST in front, the others to be unfolded."""
    rollouts = params.ppo.prompts * params.ppo.group
    sections = (
        (
            "Supervised fine-tuning",
            "Prompt and retrieved tokens carry no loss. The control goes on from the cold start for as many tokens as PPO trained on.",
            {"sft": "Cold start: ", "control": "Control: "},
            "step",
        ),
        (
            params.ppo.algorithm.upper().replace("_", "-"),
            f"{params.ppo.iterations} iterations of {rollouts} rollouts. The dev questions are not the held-out ones.",
            {"ppo": ""},
            "iteration",
        ),
    )
    groups = []
    for title, note, stages, unit in sections:
        front: list[tuple[int, Curve]] = []
        rest: list[Curve] = []
        for stage, prefix in stages.items():
            columns = curves.get(stage, {})
            for name in sorted(columns, key=lambda name: (name not in TITLES, name)):
                title_here = _title(name)
                if prefix:
                    title_here = prefix + title_here[0].lower() + title_here[1:]
                drawn = None if name == "step" else curve(title_here, unit, columns["step"], columns[name])
                if drawn is not None and name in FIRST:
                    front.append((FIRST.index(name), drawn))
                elif drawn is not None:
                    rest.append(drawn)
        front.sort(key=lambda item: item[0])
        groups.append({"title": title, "note": note, "curves": [drawn for _, drawn in front], "more": rest})
    return groups


def _title(column: str) -> str:
    return TITLES.get(column) or column.replace("_", " ").replace("/", ", ").capitalize()
