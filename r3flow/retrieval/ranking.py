"""Choosing the best of many scores, with ties broken by the corpus's order."""

from __future__ import annotations

from typing import Any

import numpy as np


def best(scores: np.ndarray[Any, Any], k: int, places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Indices of the `k` largest of `scores` (N,), largest first, equal ones in order of `places` (N,)."""
    if k < len(scores):
        bound = np.partition(scores, len(scores) - k)[len(scores) - k]
        chosen = np.flatnonzero(scores >= bound)
    else:
        chosen = np.arange(len(scores))
    return chosen[np.lexsort((places[chosen], -scores[chosen]))][:k]
