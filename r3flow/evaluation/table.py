"""The results as tables in a terminal: `python -m r3flow.evaluation.table [metrics/evaluate.json]`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from r3flow.errors import DataError, R3FlowError
from r3flow.evaluation.systems import SYSTEMS
from r3flow.files import read_json

NONE = "-"
Row = Sequence[str]


def percent(value: float | None) -> str:
    """A share as a percentage with one decimal; "-" for unknown."""
    return NONE if value is None else f"{100 * value:.1f}"


def span(bounds: Sequence[float]) -> str:
    """An interval of shares in percent."""
    return f"{100 * bounds[0]:.1f} - {100 * bounds[1]:.1f}"


def signed(value: float) -> str:
    """A difference of shares in percentage points, with its sign; no "-0.0"."""
    points = round(100 * value, 1) + 0.0
    return f"{points:+.1f}"


def number(value: float | None, places: int) -> str:
    return NONE if value is None else f"{value:.{places}f}"


def label(system: str) -> str:
    return SYSTEMS[system].label if system in SYSTEMS else system


def pretty(kind: str) -> str:
    """A question type as people write it."""
    return kind.replace("_", " ")


def ordered(systems: Mapping[str, Any]) -> list[str]:
    """Systems in the order in which they are compared; unknown ones last."""
    return [name for name in SYSTEMS if name in systems] + sorted(name for name in systems if name not in SYSTEMS)


def align(header: Row, rows: Sequence[Row], left: int = 1) -> list[str]:
    """Lines of a table: the first `left` columns aligned left, the others right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(row: Row) -> str:
        places = enumerate(zip(row, widths, strict=True))
        cells = [cell.ljust(width) if column < left else cell.rjust(width) for column, (cell, width) in places]
        return ("  " + "  ".join(cells)).rstrip()

    return [line(header), "  " + "  ".join("─" * width for width in widths), *map(line, rows)]


def results_table(systems: Mapping[str, Any]) -> list[str]:
    """Systems by figures."""
    header = ("", "EM %", "95% interval", "F1 %", "judge %", "format %", "recall %", "searches", "tokens", "tokens/right")
    rows = [
        (
            label(name), percent(s["em"]), span(s["em_ci95"]), percent(s["f1"]), percent(s["acc"]), percent(s["format_valid"]),
            percent(s["gold_recall"]), number(s["searches"], 2), number(s["tokens"], 1), number(s["tokens_per_right"], 0),
        )
        for name, s in ((name, systems[name]) for name in ordered(systems))
    ]  # fmt: skip
    return align(header, rows)


def groups_table(systems: Mapping[str, Any], key: str) -> list[str]:
    """Exact match of each system by `by_type` or `by_hops`, with intervals; no line where no group is known."""
    names = ordered(systems)
    groups = sorted({group for name in names for group in systems[name][key]})
    if not groups:
        return []
    title = {"by_type": "type", "by_hops": "hops"}[key]
    rows = []
    for group in groups:
        parts = [systems[name][key].get(group) for name in names]
        count = next(part["n"] for part in parts if part is not None)
        cells = [NONE if part is None else f"{percent(part['em']):>5}  [{span(part['em_ci95'])}]" for part in parts]
        rows.append((pretty(group), str(count), *cells))
    return align((title, "n", *(label(name) for name in names)), rows)


def budgets(systems: Mapping[str, Any]) -> list[str]:
    """Names of the step budgets that were measured, in order."""
    return sorted({budget for system in systems.values() for budget in system.get("by_budget", {})}, key=int)


def budget_table(systems: Mapping[str, Any]) -> list[str]:
    """Exact match of each system by the number of steps that it may take; no line where it was not measured."""
    steps = budgets(systems)
    rows = [
        (label(name), *(percent(systems[name]["by_budget"][budget]["em"]) for budget in steps))
        for name in ordered(systems)
        if systems[name].get("by_budget")
    ]
    return align(("steps", *steps), rows) if rows else []


def differences(systems: Mapping[str, Any]) -> list[str]:
    """Paired differences, one line each."""
    rows = [
        (
            f"{label(name)} − {label(other)}", signed(gap["em"]), f"{signed(gap['em_ci95'][0])} to {signed(gap['em_ci95'][1])}",
            str(gap["only_ours_right"]), str(gap["only_theirs_right"]),
        )
        for name in ordered(systems)
        for other, gap in systems[name].get("versus", {}).items()
    ]  # fmt: skip
    return align(("", "EM points", "95% interval", "won", "lost"), rows) if rows else []


def render(systems: Mapping[str, Any]) -> str:
    """The whole text. Raises DataError if there is no system."""
    if not systems:
        raise DataError("metrics/evaluate.json holds no system; run `dvc repro`")
    count = max(system["n"] for system in systems.values())
    blocks = [
        [f"Held-out questions ({count} a system, greedy, one try each)"],
        results_table(systems),
        ["Exact match by question type, % [95% interval]"],
        groups_table(systems, "by_type"),
        ["Exact match by number of hops, % [95% interval]"],
        groups_table(systems, "by_hops"),
        ["Exact match by step budget, %: with at most so many steps, the answering one included"],
        budget_table(systems),
        ["Paired differences on the same questions"],
        differences(systems),
    ]
    text = []
    for title, body in zip(blocks[::2], blocks[1::2], strict=True):
        if body:
            text += [*title, "", *body, ""]
    unknown = [f"{label(name)} {systems[name]['acc_unknown']}" for name in ordered(systems) if systems[name]["acc_unknown"]]
    if unknown:
        text += [f"Answers on which the judge gave no verdict, left out of 'judge': {', '.join(unknown)}", ""]
    return "\n".join(text)


def main(arguments: Sequence[str]) -> int:
    """Print the tables; 1 and one line on stderr for a file that is not there or not readable."""
    path = arguments[0] if arguments else "metrics/evaluate.json"
    try:
        print(render(read_json(path)))
    except R3FlowError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyError, TypeError, AttributeError) as error:
        print(f"error: {path}: not a results file ({type(error).__name__}: {error}); run `dvc repro`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
