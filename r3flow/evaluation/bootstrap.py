"""Intervals for means over questions: the seeded percentile bootstrap, and its paired form for the difference of two systems.

The questions are what is drawn at random, so the questions are what is resampled. Equal values, seed and number of resamples give
equal bounds on any machine (numpy's PCG64).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEVEL = 0.95
_CELLS = 4_000_000
"""Resampled values held at once; bounds memory at 32 MB whatever the number of questions."""


def interval(values: Sequence[float], resamples: int, seed: int) -> tuple[float, float]:
    """The 95% percentile-bootstrap interval (low, high) of the mean of `values`.

    Where all values are 0 or all are 1 resampling shows no spread at all, and "0 to 0" would claim certainty; the exact binomial
    (Clopper-Pearson) bound is given on the open side instead. Raises ValueError for no value.
    """
    sample = np.asarray(values, dtype=np.float64)
    if not sample.size:
        raise ValueError("no value to resample")
    if (sample == 0).all():
        return 0.0, 1 - _tail() ** (1 / sample.size)
    if (sample == 1).all():
        return _tail() ** (1 / sample.size), 1.0
    low, high = np.quantile(_means(sample, resamples, seed), [_tail(), 1 - _tail()])
    return float(low), float(high)


def difference(ours: Sequence[float], theirs: Sequence[float], resamples: int, seed: int) -> tuple[float, float, float]:
    """(mean, low, high) of `ours - theirs`, paired: place i of both is the same question, and both are resampled together.

    Pairing takes out how hard a question is, so the interval is narrower than two separate ones would suggest. Raises ValueError
    for unequal lengths and for no value.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"not paired: {len(ours)} values against {len(theirs)}")
    if not ours:
        raise ValueError("no value to resample")
    gaps = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    low, high = np.quantile(_means(gaps, resamples, seed), [_tail(), 1 - _tail()])
    return float(gaps.mean()), float(low), float(high)


def _tail() -> float:
    return (1 - LEVEL) / 2


def _means(sample: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """(resamples,) means of samples drawn with replacement."""
    rng = np.random.default_rng(seed)
    rows = max(1, _CELLS // sample.size)
    parts = []
    for start in range(0, resamples, rows):
        places = rng.integers(0, sample.size, size=(min(rows, resamples - start), sample.size))
        parts.append(sample[places].mean(axis=1))
    return np.concatenate(parts)
