"""is_finite agrees with numpy in every float type."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from onward.providers.ort.training.finite_check import is_finite

FLOATS = st.sampled_from([np.float16, np.float32, np.float64])


@given(FLOATS.flatmap(lambda dtype: arrays.arrays(dtype, st.integers(0, 40))))
def test_is_finite_agrees_with_numpy(vector: np.ndarray) -> None:
    assert is_finite(vector) == np.isfinite(vector).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_finite_numbers_whose_sum_overflows(dtype: type) -> None:
    vector = np.full(1000, np.finfo(dtype).max, dtype)
    assert is_finite(vector)
    vector[500] = -np.inf
    assert not is_finite(vector)


def test_integers_are_finite() -> None:
    assert is_finite(np.array([2**62, 2**62]))
