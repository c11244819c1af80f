"""Faults of form that end no trajectory: turns that were no step, and steps with text outside of the protocol's parts.

`malformed` tells of them where the first such turn ends the trajectory. Elsewhere they are counted here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from r3flow.params import ProtocolParams
from r3flow.protocol import PROTOCOLS
from r3flow.trajectory import InvalidStep, Step, Trajectory

_FAULTS: dict[str, Callable[[Step | InvalidStep], bool]] = {
    "invalid_turns": lambda step: isinstance(step, InvalidStep),
    "untidy_turns": lambda step: isinstance(step, Step) and not step.tidy,
}


def possible_faults(settings: ProtocolParams) -> tuple[str, ...]:
    """The names of those that trajectories under `settings` can have beside the turn that ends them."""
    can = {"invalid_turns": settings.on_invalid == "feedback", "untidy_turns": PROTOCOLS[settings.name].tolerant}
    return tuple(name for name in _FAULTS if can[name])


def faulty_turns(trajectories: Sequence[Trajectory], names: Sequence[str]) -> dict[str, float]:
    """How many turns of each kind in `names` a trajectory has, in the mean; 0 without trajectories."""
    count = max(1, len(trajectories))
    return {name: sum(_FAULTS[name](step) for item in trajectories for step in item.steps) / count for name in names}
