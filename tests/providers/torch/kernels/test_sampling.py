"""Sampling between elements, in every number of dimensions, against the reference."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from onward.providers.torch.kernels.sampling import cubic_weight
from tests.providers.torch.one_node import run_op
from tests.providers.torch.reference import reference_op

rng = np.random.default_rng(0)
Array = np.ndarray[Any, Any]

SIZES = {1: (5,), 2: (4, 5), 3: (3, 4, 2)}
MODES = list(product(["nearest", "linear", "cubic"], ["zeros", "border", "reflection"]))
# There the reference moves the point to the border; ORT and torch move its neighbours.
MODES.remove(("cubic", "border"))
POINTS = {1: (12,), 2: (4, 3), 3: (2, 2, 3)}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode, padding_mode", MODES)
@pytest.mark.parametrize("align_corners", [0, 1])
def test_samples_match_the_reference(
    rank: int, mode: str, padding_mode: str, align_corners: int
) -> None:
    x = rng.standard_normal((2, 1, *SIZES[rank])).astype(np.float32)
    grid = rng.uniform(-1.6, 1.6, (2, *POINTS[rank], rank)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    (expected,) = reference_op("GridSample", [x, grid], attributes)
    (y,) = run_op("GridSample", [x, grid], attributes)
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "padding_mode, align_corners, padded",
    [
        ("zeros", 0, "constant"),
        ("border", 0, "edge"),
        ("border", 1, "edge"),
        ("reflection", 0, "symmetric"),
        ("reflection", 1, "reflect"),
    ],
)
def test_padding_extends_the_tensor(
    rank: int, mode: str, padding_mode: str, align_corners: int, padded: Any
) -> None:
    x = rng.standard_normal((1, 2, *SIZES[rank])).astype(np.float64)
    places = rng.uniform(-3, 5, (1, *POINTS[rank], rank))  # as x counts, first axis first

    def sampled(tensor: Array, places: Array, padding_mode: str) -> Array:
        sizes = np.array(tensor.shape[2:])
        half = 0.0 if align_corners else 0.5
        grid = 2 * (places + half) / (sizes - 1 + 2 * half) - 1
        attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
        (y,) = run_op("GridSample", [tensor, grid[..., ::-1].copy()], attributes)
        return np.asarray(y)

    longer = np.pad(x, [(0, 0)] * 2 + [(8, 8)] * rank, mode=padded)
    expected = sampled(longer, places + 8, "zeros")
    np.testing.assert_allclose(sampled(x, places, padding_mode), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", ["e", "d", "i", "B", "H", "?", "F"])
def test_any_type_can_be_sampled(dtype: str) -> None:
    x = rng.integers(0, 100, (1, 2, 4, 4)).astype(dtype)
    grid = rng.uniform(-0.9, 0.9, (1, 3, 3, 2)).astype(np.float32)
    (y,) = run_op("GridSample", [x, grid], {"align_corners": 1})
    (wide,) = run_op("GridSample", [np.abs(x).astype(np.float64), grid], {"align_corners": 1})
    assert y.dtype == x.dtype
    np.testing.assert_allclose(np.abs(y), wide.astype(x.real.dtype), rtol=1e-2, atol=1)


def test_a_border_that_is_one_element_wide_is_that_element() -> None:
    x, grid = np.full((1, 1, 1), 7, np.float32), np.array([[[-3.0], [0.0], [3.0]]], np.float32)
    for padding_mode in ("border", "reflection"):
        attributes = {"padding_mode": padding_mode, "align_corners": 1}
        assert run_op("GridSample", [x, grid], attributes)[0].tolist() == [[[7, 7, 7]]]


@pytest.mark.parametrize("a", [-0.75, -0.5])
def test_the_cubic_weights_of_four_taps_sum_to_one(a: float) -> None:
    place = torch.linspace(0, 1, 11)
    weights = sum(cubic_weight(place - tap, a) for tap in (-1, 0, 1, 2))
    torch.testing.assert_close(weights, torch.ones(11))
