"""The sum of squares of gradients: as exact as a float32, at any scale."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onward.providers.ort.training.bound_updates import squares_of


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1e-13, 1.0, 1e18, 1e20, 1e36])
@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 5000, 70_001])
def test_squares_of_float32_are_those_of_float64(size: int, scale: float) -> None:
    rng = np.random.default_rng(size)
    for numbers in (rng.normal(size=size), rng.lognormal(0, 1, size), np.full(size, 1 / 3)):
        vector = (numbers * scale).astype(np.float32)
        exact = float(np.square(vector.astype(np.float64)).sum())
        assert squares_of(vector) == pytest.approx(exact, rel=2e-7, abs=0.0)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 40, 99])
def test_what_is_not_finite_stays_so(place: int, bad: float) -> None:
    vector = np.ones(100, np.float32)
    vector[place] = bad
    assert not math.isfinite(squares_of(vector))
