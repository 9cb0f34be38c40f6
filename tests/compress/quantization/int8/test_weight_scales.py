"""Scales of weights: one for each channel."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from onward.compress.quantization.int8.weight_scales import (
    channel_scales,
    dequantize,
    round_weight,
)

WEIGHTS = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=2, max_dims=4, max_side=6),
    elements=st.floats(-100, 100, width=32),
)


@given(weight=WEIGHTS, last=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_scale_for_each_channel_never_errs_more_than_one_for_all(
    weight: np.ndarray, last: bool
) -> None:
    axis = weight.ndim - 1 if last else 0
    scales = channel_scales(weight, axis)
    whole = np.full_like(scales, max(float(np.abs(weight).max()), 1e-9) / 127)
    ours = dequantize(round_weight(weight, scales, axis), scales, axis) - weight
    theirs = dequantize(round_weight(weight, whole, axis), whole, axis) - weight
    assert (ours**2).sum() <= (theirs**2).sum() * (1 + 1e-4) + 1e-6


def test_searched_scales_err_less_than_the_greatest_number() -> None:
    weight = np.tile(np.arange(-127, 128, dtype=np.float32) / 127 * 0.7, (1, 240))
    weight[0, 0] = 1.0  # alone beyond what all of the others need
    errors = []
    for search in (False, True):
        scales = channel_scales(weight, 0, search=search)
        errors.append(
            ((dequantize(round_weight(weight, scales, 0), scales, 0) - weight) ** 2).sum()
        )
    assert errors[1] < errors[0]


def test_a_channel_of_zeros_stays_zero() -> None:
    weight = np.zeros((2, 3), np.float32)
    assert not round_weight(weight, channel_scales(weight, 0), 0).any()
