"""The report: one self-contained HTML page. Everything that came from a corpus, a question or a model is escaped by the template.

The page loads nothing from anywhere, and a content policy holds it to that: only the script of this package may run in it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from r3flow.evaluation import table
from r3flow.evaluation.browse import cards
from r3flow.evaluation.curves import tidy
from r3flow.evaluation.learning import curve_groups
from r3flow.evaluation.results import Result
from r3flow.evaluation.systems import SYSTEMS
from r3flow.params import Params

PAGE = Path(__file__).parent / "page"

FATES = {
    "match": ("accepted by match", True),
    "judge": ("accepted by the judge", True),
    "wrong": ("wrong answer", False),
    "unclear": ("no verdict", False),
    "no_answer": ("no answer", False),
    "malformed": ("malformed step", False),
}


@dataclass(frozen=True)
class Inputs:
    """What the page is made of. `metrics` is `metrics/evaluate.json`; `curves` are CSV columns by stage."""

    params: Params
    metrics: Mapping[str, Any]
    results: Mapping[str, Sequence[Result]]
    curves: Mapping[str, Mapping[str, Sequence[float | None]]]
    prepared: Mapping[str, Any]
    synthesized: Mapping[str, Any]
    filtered: Mapping[str, Any]


def build(inputs: Inputs) -> str:
    """The page's HTML; equal inputs give equal bytes."""
    script = (PAGE / "page.js").read_text(encoding="utf-8")
    names = table.ordered(inputs.metrics)
    reward = inputs.params.reward
    shown = cards(inputs.results, inputs.params.report.trajectories, reward.preset, reward.outcome)
    groups = curve_groups(inputs.curves, inputs.params)
    template = _templates().get_template("page.html")
    page = template.render(
        style=Markup((PAGE / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=Markup(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()),
        count=max(inputs.metrics[name]["n"] for name in names),
        headline=_headline(inputs.metrics),
        tiles=_tiles(inputs.metrics),
        systems=[_row(name, inputs.metrics[name], names[-1]) for name in names],
        unknown=sum(inputs.metrics[name]["acc_unknown"] for name in names),
        gaps=_gaps(inputs.metrics),
        groups=_question_groups(inputs.metrics),
        budgets=table.budgets(inputs.metrics),
        has_curves=any(group["curves"] or group["more"] for group in groups),
        curve_groups=groups,
        teacher=_teacher(inputs),
        cards=shown,
        kinds=sorted({card["type"] for card in shown if card["type"]}),
        hops=sorted({card["hops"] for card in shown if card["hops"]}),
        reward_note=_reward_note(inputs.params),
        setup=_setup(inputs),
        **_simulated(inputs.params),
    )
    # a lone half of a surrogate pair, which JSON can carry and UTF-8 can not, becomes a question mark
    return page.encode("utf-8", "replace").decode("utf-8")


def _templates() -> Environment:
    templates = Environment(loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    templates.filters |= {
        "percent": lambda value: "–" if value is None else table.percent(value),
        "span": _span,
        "signed": lambda value: _minus(table.signed(value)),
        "number": lambda value, places: "–" if value is None else f"{value:,.{places}f}",
        "reward": lambda value: "unknown" if value is None else _minus(f"{value:+.2f}") if abs(value) >= 0.005 else "0",
        "tone": lambda value: "" if not value else "up" if value > 0 else "down",
        "zip": lambda left, right: zip(left, right, strict=True),
        "tidy": tidy,
    }
    return templates


def _span(bounds: Sequence[float]) -> str:
    return table.span(bounds).replace(" - ", "–")


def _minus(text: str) -> str:
    """A typographic minus sign."""
    return text.replace("-", "−")


def _row(name: str, figures: Mapping[str, Any], focus: str) -> dict[str, Any]:
    about = SYSTEMS[name].about if name in SYSTEMS else ""
    return {**figures, "name": name, "label": table.label(name), "about": about, "focus": name == focus}


def _verdict(gap: Mapping[str, Any]) -> str:
    """How a difference reads in a sentence: only an interval that leaves out zero may claim one."""
    points = f"{abs(100 * gap['em']):.1f} points"
    interval = _minus(f"(95% interval {table.signed(gap['em_ci95'][0])} to {table.signed(gap['em_ci95'][1])})")
    if gap["em_ci95"][0] > 0:
        return f"{points} more than {{other}} {interval}"
    if gap["em_ci95"][1] < 0:
        return f"{points} fewer than {{other}} {interval}"
    return f"no clear difference from {{other}} on these questions {interval}"


def _headline(metrics: Mapping[str, Any]) -> dict[str, str]:
    name = table.ordered(metrics)[-1]
    figures = metrics[name]
    title = f"{table.label(name)} answers {100 * figures['em']:.0f}% of the held\u2011out questions exactly right"
    parts = [_verdict(gap).format(other=f"the {table.label(other).lower()}") for other, gap in figures.get("versus", {}).items()]
    text = f"That is {', and '.join(parts)}. " if parts else ""
    recall = "" if figures["gold_recall"] is None else f" and is shown {table.percent(figures['gold_recall'])}% of the supporting passages"
    return {"title": title, "text": f"{text}It searches {figures['searches']:.1f} times a question{recall}."}


def _tiles(metrics: Mapping[str, Any]) -> list[dict[str, str]]:
    name = table.ordered(metrics)[-1]
    figures = metrics[name]
    tiles = [(f"{table.label(name)}, exact match", table.percent(figures["em"]), "%", f"95% interval {_span(figures['em_ci95'])}")]
    for other, gap in figures.get("versus", {}).items():
        low, high = (_minus(table.signed(bound)) for bound in gap["em_ci95"])
        tiles.append((f"Over {table.label(other).lower()}", _minus(table.signed(gap["em"])), "points", f"95% interval {low} to {high}"))
    tiles.append(("Searches a question", f"{figures['searches']:.2f}", "", f"{figures['tokens']:.0f} generated tokens"))
    tiles.append(("Well-formed", table.percent(figures["format_valid"]), "%", "of trajectories"))
    return [{"name": title, "value": value, "unit": unit, "sub": sub} for title, value, unit, sub in tiles]


def _gaps(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Paired differences, with places in percent on one common axis that holds zero."""
    found = [(name, other, gap) for name in table.ordered(metrics) for other, gap in metrics[name].get("versus", {}).items()]
    if not found:
        return []
    low = min(0.0, *(gap["em_ci95"][0] for _, _, gap in found))
    high = max(0.0, *(gap["em_ci95"][1] for _, _, gap in found))
    pad = 0.06 * (high - low or 1.0)
    low, high = low - pad, high + pad

    def at(value: float) -> float:
        return 100 * (value - low) / (high - low)

    return [
        {
            "ours": table.label(name), "theirs": table.label(other).lower(),
            "em": gap["em"], "low": gap["em_ci95"][0], "high": gap["em_ci95"][1],
            "zero": at(0.0), "at": at(gap["em"]), "left": at(gap["em_ci95"][0]), "width": at(gap["em_ci95"][1]) - at(gap["em_ci95"][0]),
            "tone": "up" if gap["em_ci95"][0] > 0 else "down" if gap["em_ci95"][1] < 0 else "",
            "won": gap["only_ours_right"], "lost": gap["only_theirs_right"],
        }
        for name, other, gap in found
    ]  # fmt: skip


def _question_groups(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Small panels of all systems, one a question type and one a number of hops."""
    names = table.ordered(metrics)
    groups = []
    for key, title, naming in (("by_type", "Type", table.pretty), ("by_hops", "Hops", lambda hops: f"{hops} hops")):
        panels = []
        for group in sorted({group for name in names for group in metrics[name][key]}):
            rows = [_row(name, metrics[name][key][group], names[-1]) for name in names if group in metrics[name][key]]
            panels.append({"name": naming(group), "n": rows[0]["n"], "rows": rows})
        if panels:
            groups.append({"title": title, "panels": panels})
    return groups


def _teacher(inputs: Inputs) -> dict[str, Any] | None:
    """Acceptance of the teacher's attempts by kind, and what became of the rest."""
    tried, kept = inputs.synthesized, inputs.filtered
    if not kept.get("questions"):
        return None
    kinds = [("all", kept), *((table.pretty(name), part) for name, part in kept["by_type"].items())]
    kinds += [(f"{name} hops", part) for name, part in kept["by_hops"].items()]
    counts = {**kept["accepted_by"], **kept["fell"]}
    useless = kept["useless"]["share"]
    text = (
        f"The teacher ({inputs.params.teacher.model}) was asked about {tried['questions']:,} questions, in {tried['attempts']:,} attempts; "
        f"{kept['accepted']:,} trajectories were right and well formed ({100 * kept['acceptance']:.1f}%). "
    )
    if useless is not None:
        text += f"Of the searches in the accepted ones {100 * useless:.1f}% brought no new supporting passage; PPO can unlearn those."
    return {
        "text": text,
        "kinds": [
            {"name": name, "share": part["acceptance"] or 0.0, "accepted": part["accepted"], "questions": part["questions"]}
            for name, part in kinds
        ],
        "fates": [
            {"name": name, "good": good, "count": counts[key], "share": counts[key] / kept["questions"]}
            for key, (name, good) in FATES.items()
            if counts.get(key)
        ],
    }


def _simulated(params: Params) -> dict[str, str]:
    """Says plainly where a stand-in took the place of a model."""
    roles = [role for role in ("teacher", "judge") if getattr(params, role).endpoint == "simulated"]
    return {
        "simulated": " and ".join(roles),
        "simulated_text": (
            "No language model wrote the training trajectories or graded them: a program that knows the generated world took its place and "
            "errs at rates set in params.yaml. The figures show that the pipeline learns, not how well a real teacher would do."
            if roles
            else ""
        ),
    }


def _reward_note(params: Params) -> str:
    trained = params.reward.process
    if not params.reward.pays_process:
        return f"The rewards are those of the preset {params.reward.preset}."
    rule = "the rule gold, a new supporting passage first" + ("" if trained == "gold" else f" (in training: {trained})")
    return f"The rewards are those of the preset {params.reward.preset}; relevance is by {rule}."


def _setup(inputs: Inputs) -> list[tuple[str, str]]:
    params = inputs.params
    corpus = "generated demo world" if params.prepare.source == "world" else "own files"
    passages = inputs.prepared.get("passages")
    return [
        ("Corpus", corpus if passages is None else f"{corpus}, {passages:,} passages"),
        ("Base model", params.policy.base),
        ("Retriever", f"{params.retrieval.kind}, top {params.retrieval.top_k}"),
        ("Protocol", f"{params.protocol.name}, at most {params.protocol.max_steps} steps"),
        ("Teacher", params.teacher.model),
        ("Judge", params.judge.model),
        ("Reward", f"{params.reward.preset}, process by {params.reward.process}"),
        ("Bootstrap", f"{params.evaluate.bootstrap:,} resamples"),
        ("Seed", str(params.seed)),
    ]
