"""The bootstrap intervals hold what they promise, and equal seeds give equal bounds."""

from __future__ import annotations

import numpy as np
import pytest

from r3flow.evaluation import bootstrap
from r3flow.evaluation.bootstrap import difference, interval


def test_about_95_of_100_intervals_hold_the_true_rate() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for trial in range(400):
        low, high = interval((rng.random(150) < 0.7).astype(float).tolist(), 500, trial)
        held += low <= 0.7 <= high
    assert 0.90 <= held / 400 <= 0.98


def test_a_rate_has_the_width_of_the_binomial() -> None:
    values = [1.0] * 300 + [0.0] * 200
    low, high = interval(values, 4000, 1)
    expected = 1.96 * (0.6 * 0.4 / 500) ** 0.5
    assert high - 0.6 == pytest.approx(expected, rel=0.1)
    assert 0.6 - low == pytest.approx(expected, rel=0.1)


def test_same_seed_same_bounds_and_another_seed_others() -> None:
    values = [0.0, 1.0, 1.0, 0.5, 0.25] * 20
    assert interval(values, 1000, 3) == interval(values, 1000, 3)
    assert interval(values, 1000, 3) != interval(values, 1000, 4)


def test_large_samples_are_cut_into_parts_of_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [0.0, 1.0, 1.0] * 30
    whole = interval(values, 500, 3)
    monkeypatch.setattr(bootstrap, "_CELLS", 7 * len(values))
    assert interval(values, 500, 3) == pytest.approx(whole, abs=0.03)


@pytest.mark.parametrize("n", [1, 30, 600])
def test_all_equal_is_not_certainty(n: int) -> None:
    low, high = interval([0.0] * n, 500, 1)
    assert low == 0.0
    # Clopper-Pearson: with this rate, no success in n has a chance of 2.5%
    assert (1 - high) ** n == pytest.approx(0.025)
    low, high = interval([1.0] * n, 500, 1)
    assert high == 1.0
    assert low**n == pytest.approx(0.025)


def test_paired_difference_takes_out_the_questions_difficulty() -> None:
    rng = np.random.default_rng(2)
    easy = rng.random(400) < 0.5
    ours = (easy | (rng.random(400) < 0.1)).astype(float)
    theirs = easy.astype(float)
    mean, low, high = difference(ours.tolist(), theirs.tolist(), 2000, 1)
    assert mean == pytest.approx(ours.mean() - theirs.mean())
    assert 0 < low <= mean <= high
    separate = [interval(values.tolist(), 2000, 1) for values in (ours, theirs)]
    assert high - low < 0.7 * sum(b - a for a, b in separate) / 2**0.5


def test_no_difference_at_all_and_unequal_lengths() -> None:
    assert difference([1.0, 0.0], [1.0, 0.0], 200, 1) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="not paired"):
        difference([1.0], [1.0, 0.0], 200, 1)
    with pytest.raises(ValueError, match="no value"):
        interval([], 200, 1)
    with pytest.raises(ValueError, match="no value"):
        difference([], [], 200, 1)
