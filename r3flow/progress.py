"""How library code tells what it is doing, without knowing who listens (a terminal, MLflow, Prefect, nobody)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Reporter(Protocol):
    """Receives progress and metrics. Implementations must not raise on a slow or dead listener."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Named values of one update; `step` counts from 1."""

    def progress(self, done: int, total: int, note: str = "") -> None:
        """`done` of `total` units are finished; `note` is a short live text such as "accepted 812/1190"."""


class Silent:
    """A reporter that nobody listens to."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        return None

    def progress(self, done: int, total: int, note: str = "") -> None:
        return None
