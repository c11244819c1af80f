"""Learning curves as geometry for the report's inline SVG: from CSV columns to paths and ticks."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from r3flow.errors import DataError
from r3flow.files import UNREADABLE

WIDTH, HEIGHT = 320.0, 150.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 10.0, 10.0, 22.0
"""The chart's box and the margins that hold its tick labels, in SVG units."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A grid line: its place in SVG units and its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Curve:
    """One line chart. `points` are (x, y) as they are in the file, `places` the same in SVG units."""

    title: str
    x_title: str
    points: tuple[tuple[float, float], ...]
    places: tuple[tuple[float, float], ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]

    @property
    def path(self) -> str:
        return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in self.places)

    @property
    def area(self) -> str:
        """The same line closed at the bottom, for a faint fill."""
        floor = HEIGHT - BOTTOM
        return f"{self.path}L{self.places[-1][0]:.1f},{floor:.1f}L{self.places[0][0]:.1f},{floor:.1f}Z"

    @property
    def last(self) -> str:
        return tidy(self.points[-1][1])


def tidy(value: float) -> str:
    """A number with as many digits as a reader needs: 4 significant ones, no exponent where it can be helped."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.4g}"
    return text if "e" not in text else f"{value:.1e}"


def read_columns(path: str | Path) -> dict[str, list[float | None]]:
    """Columns of a CSV file of numbers; an empty cell or a "nan" is None. Raises DataError that names the file and line."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            columns: dict[str, list[float | None]] = {name: [] for name in rows.fieldnames or ()}
            for row in rows:
                for name, cells in columns.items():
                    cells.append(_number(row[name], path, rows.line_num, name))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not valid UTF-8 (byte {error.start})") from None
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    return columns


def _number(cell: str | None, path: str | Path, line: int, name: str) -> float | None:
    if cell is None or not cell.strip():
        return None
    try:
        value = float(cell)
    except ValueError:
        raise DataError(f"{path}:{line}: column '{name}' holds {cell!r}, expected a number") from None
    return value if math.isfinite(value) else None


def curve(title: str, x_title: str, xs: Sequence[float | None], ys: Sequence[float | None]) -> Curve | None:
    """A chart of the points where both are known; None if there are fewer than two."""
    points = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None]
    if len(points) < 2:
        return None
    x_low, x_high = points[0][0], max(points[-1][0], points[0][0] + 1e-9)
    y_grid = nice(min(y for _, y in points), max(y for _, y in points), 3)
    y_low, y_high = y_grid[0], y_grid[-1]

    def place_x(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def place_y(y: float) -> float:
        return HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    whole = all(x == int(x) for x, _ in points)  # there is no iteration 1.5
    x_grid = [x for x in nice(x_low, x_high, 4) if x_low <= x <= x_high and (not whole or x == int(x))]
    return Curve(
        title,
        x_title,
        tuple(points),
        tuple((place_x(x), place_y(y)) for x, y in points),
        tuple(Tick(place_x(x), tidy(x)) for x in x_grid),
        tuple(Tick(place_y(y), tidy(y)) for y in y_grid),
    )


def nice(low: float, high: float, about: int) -> list[float]:
    """Round grid values that enclose [low, high], in about `about` steps of 1, 2 or 5 times a power of ten."""
    if high - low < 1e-12:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * place, 12) for place in range(first, last + 1)]
