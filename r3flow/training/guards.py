"""When training stops before its last iteration: a guard is broken, or the dev score rises no more.

Reinforcement learning of searchers is reported to collapse after some hundred updates: the divergence or the answers' length runs away, the
entropy or the share of answers falls. A guard looks at one column of the curve. Everything here depends on the curve's rows alone, which
lie in every checkpoint, so a run that was killed stops where it would have stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from r3flow.params import PPO

Rows = Sequence[Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class _Guard:
    column: str
    upper: bool
    """Whether the limit is the most that is allowed; else the least."""
    advice: str


_GUARDS = {
    "max_kl": _Guard("kl", True, "lower ppo.learning_rate or raise ppo.kl_coefficient"),
    "min_entropy": _Guard("entropy", False, "raise ppo.entropy_coefficient or ppo.temperature"),
    "min_answer_rate": _Guard("answer_rate", False, "see what pays a search that leads to no answer (reward.preset, reward.process)"),
    "max_tokens": _Guard("tokens", True, "see what pays for long answers (reward.outcome: cover), or lower protocol.max_turn_tokens"),
}


def reason_to_stop(settings: PPO, rows: Rows) -> str | None:
    """One line that says why training stops behind the last of `rows`; None while nothing does."""
    learned = [row for row in rows if row["step"] > 0]
    recent = learned[-settings.guards.patience :]
    for name, guard in _GUARDS.items():
        limit = getattr(settings.guards, name)
        if limit is None or len(recent) < settings.guards.patience:
            continue
        if all(row[guard.column] > limit if guard.upper else row[guard.column] < limit for row in recent):
            return (
                f"ppo.guards.{name}: {guard.column} is {recent[-1][guard.column]:.4g} in iteration {recent[-1]['step']:.0f}, "
                f"{'above' if guard.upper else 'below'} {limit:g} for {len(recent)} iterations; {guard.advice}"
            )
    if settings.early_stop is not None:
        scores = [(row["step"], row["dev_em"]) for row in rows if "dev_em" in row]
        best = best_row(rows)
        since = [score for step, score in scores if best is not None and step > best["step"]]
        if best is not None and len(since) >= settings.early_stop:
            return (
                f"ppo.early_stop: the dev score has not been above {best['dev_em']:.3f} (iteration {best['step']:.0f}) in the "
                f"{len(since)} evaluations since"
            )
    return None


def best_row(rows: Rows) -> Mapping[str, float] | None:
    """The row with the best dev score, the first of equal ones; None where dev was never evaluated."""
    return max((row for row in rows if "dev_em" in row), key=lambda row: row["dev_em"], default=None)
