"""Finite numbers: told from those that are not, in every float type."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from onward.providers.ort.training.finite_check import is_finite

FLOATS = st.sampled_from([np.float16, np.float32, np.float64])


@given(FLOATS.flatmap(lambda dtype: arrays.arrays(dtype, st.integers(0, 40))))
def test_it_is_what_numpy_says_of_each(vector: np.ndarray) -> None:
    assert is_finite(vector) == np.isfinite(vector).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sums_that_overflow_are_not_taken_for_infinite(dtype: type) -> None:
    vector = np.full(1000, np.finfo(dtype).max, dtype)
    assert is_finite(vector)
    vector[500] = -np.inf
    assert not is_finite(vector)


def test_whole_numbers_are_finite() -> None:
    assert is_finite(np.array([2**62, 2**62]))
