"""Progress for people: a bar on a terminal, one line about every ten seconds in a log."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tqdm import tqdm

_EVERY_S = 10.0
MetricsSink = Callable[[Mapping[str, float], int], None]


class Terminal:
    """A `Reporter` that shows progress on stderr and hands metrics to `sink`. The last note stays visible."""

    def __init__(self, name: str, sink: MetricsSink) -> None:
        self._name = name
        self._sink = sink
        self._bar: Any = None
        self._interactive = sys.stderr.isatty()
        self._last = -math.inf
        self._pending = ""
        self._started = time.monotonic()

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self._sink({name: float(value) for name, value in values.items() if value is not None}, step)

    def progress(self, done: int, total: int, note: str = "") -> None:
        if self._interactive:
            self._draw(done, total, note)
            return
        self._pending = f"{self._name}: {done}/{total}{'  ' + note if note else ''}"
        now = time.monotonic()
        if now - self._last >= _EVERY_S or done >= total:
            self._last = now
            self._say()

    def _say(self) -> None:
        if self._pending:
            print(f"{self._pending}  [{time.monotonic() - self._started:.0f} s]", file=sys.stderr, flush=True)
            self._pending = ""

    def _draw(self, done: int, total: int, note: str) -> None:
        bar = self._bar
        if bar is None or total != bar.total or done < bar.n:
            if bar is not None:
                bar.close()
            bar = self._bar = tqdm(total=total, desc=self._name, dynamic_ncols=True, file=sys.stderr)
        if note:
            bar.set_postfix_str(note, refresh=False)
        bar.update(done - bar.n)
        if done >= total:
            bar.refresh()

    def close(self) -> None:
        """Finish the bar, or say the last thing that was not said."""
        if self._bar is not None:
            self._bar.close()
        self._say()
