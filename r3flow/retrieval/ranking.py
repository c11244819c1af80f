"""Choosing the best of many scores, with ties broken by the corpus's order."""

from __future__ import annotations

from typing import Any

import numpy as np


def best(scores: np.ndarray[Any, Any], k: int) -> np.ndarray[Any, Any]:
    """Places of the `k` largest of `scores` (N,), largest first, equal ones in order of place."""
    if k < len(scores):
        bound = np.partition(scores, len(scores) - k)[len(scores) - k]
        places = np.flatnonzero(scores >= bound)
    else:
        places = np.arange(len(scores))
    return places[np.lexsort((places, -scores[places]))][:k]
