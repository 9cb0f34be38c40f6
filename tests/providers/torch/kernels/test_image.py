"""Resize and the sampling grid beyond the node tests of ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.providers.torch.one_node import run_op
from tests.providers.torch.reference import reference_op

rng = np.random.default_rng(0)
Array = np.ndarray[Any, Any]

TRANSFORMATIONS = [
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
]


def floats(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def check_resize(
    x: Array, attributes: dict[str, Any], *, scales: Any = None, sizes: Any = None, roi: Any = None
) -> None:
    """Compare with the reference; what is not given is left out."""
    inputs = [
        x,
        None if roi is None else np.array(roi, np.float32),
        None if scales is None else np.array(scales, np.float32),
        None if sizes is None else np.array(sizes, np.int64),
    ]
    (expected,) = reference_op("Resize", inputs, attributes)
    (y,) = run_op("Resize", inputs, attributes)
    assert y.dtype == expected.dtype
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.sampled("mode", "transformation")
@pytest.mark.sampled("scales")
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [[2.0, 4.0], [0.45, 1.5], [1.65, 0.71], [0.3, 3.0]])
def test_every_mode_and_transformation_with_scales(
    mode: str, transformation: str, scales: list[float]
) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": transformation}
    roi = [0, 0, 0.25, 0.35, 1, 1, 0.8, 1.4] if transformation == "tf_crop_and_resize" else None
    check_resize(floats(1, 2, 7, 6), attributes, scales=[1, 1, *scales], roi=roi)


@pytest.mark.sampled("mode", "transformation")
@pytest.mark.sampled("sizes")
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("sizes", [[14, 12], [3, 9], [7, 6], [5, 24]])
def test_every_mode_and_transformation_with_sizes(
    mode: str, transformation: str, sizes: list[int]
) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": transformation}
    attributes["extrapolation_value"] = 9.0
    roi = [0, 0, -0.25, 0.35, 1, 1, 0.8, 0.9] if transformation == "tf_crop_and_resize" else None
    check_resize(floats(1, 2, 7, 6), attributes, sizes=[1, 2, *sizes], roi=roi)


@pytest.mark.sampled("nearest", "transformation")
@pytest.mark.sampled("sizes")
@pytest.mark.parametrize("transformation", ["asymmetric", "half_pixel", "align_corners"])
@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("sizes", [[8, 4], [16, 3], [12, 8]])
def test_every_nearest_mode(transformation: str, nearest: str, sizes: list[int]) -> None:
    attributes = {"coordinate_transformation_mode": transformation, "nearest_mode": nearest}
    check_resize(floats(1, 1, 4, 4), attributes, sizes=[1, 1, *sizes])


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("scales", [[0.4, 0.3], [0.15, 0.5], [2.0, 0.6]])
def test_antialias_and_exclude_outside(
    mode: str, antialias: int, exclude: int, scales: list[float]
) -> None:
    attributes = {"mode": mode, "antialias": antialias, "exclude_outside": exclude}
    check_resize(floats(1, 1, 12, 10), attributes, scales=[1, 1, *scales])


@pytest.mark.parametrize("a", [-0.5, -1.0])
def test_the_cubic_coefficient_is_free(a: float) -> None:
    check_resize(floats(1, 1, 5, 6), {"mode": "cubic", "cubic_coeff_a": a}, sizes=[1, 1, 9, 8])


@pytest.mark.parametrize("axes", [[1, 2], [2, 1], [-1], [0], [2, 0]])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_only_the_named_axes_are_resized(axes: list[int], mode: str) -> None:
    x, sizes = floats(3, 4, 5), [7, 2][: len(axes)]
    (y,) = run_op("Resize", [x, None, None, np.array(sizes)], {"mode": mode, "axes": axes})
    whole = list(x.shape)
    for axis, size in zip(axes, sizes):
        whole[axis] = size
    (expected,) = reference_op("Resize", [x, None, None, np.array(whole)], {"mode": mode})
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("sizes", [[9, 4], [3, 20], [14, 12]])
def test_the_aspect_ratio_is_kept(policy: str, mode: str, sizes: list[int]) -> None:
    attributes = {"mode": mode, "keep_aspect_ratio_policy": policy, "axes": [2, 3]}
    check_resize(floats(1, 2, 7, 6), attributes, sizes=sizes)


@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 4, 6), (1, 2, 3, 4, 6), (1, 1, 2, 3, 2, 3)])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_any_rank_can_be_resized(shape: Any, mode: str) -> None:
    check_resize(floats(*shape), {"mode": mode}, scales=[1.0] * (len(shape) - 1) + [1.7])


@pytest.mark.sampled("dtype")
@pytest.mark.sampled("mode")
@pytest.mark.parametrize("dtype", ["e", "d", "b", "B", "H", "I", "i", "q"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_numbers_of_any_type_are_rounded_and_bounded(dtype: str, mode: str) -> None:
    for seed in range(16):  # cubic halves of some are wrong where sums are rounded in between
        x = np.random.default_rng(seed).integers(0, 127, (1, 1, 4, 4)).astype(dtype)
        x[0, 0, :2] = 0
        inputs = [x, None, None, np.array([1, 1, 7, 6])]
        (expected,) = reference_op("Resize", inputs, {"mode": mode})
        (y,) = run_op("Resize", inputs, {"mode": mode})
        assert y.dtype == x.dtype
        near = 1 if x.dtype.kind in "iu" else 1e-4  # a half may be rounded the other way
        np.testing.assert_allclose(y.astype("d"), expected.astype("d"), rtol=1e-3, atol=near)


def test_booleans_and_complex_numbers_are_resized() -> None:
    x = floats(1, 1, 3, 3) > 0
    sizes = np.array([1, 1, 6, 6])
    (y,) = run_op("Resize", [x, None, None, sizes])
    np.testing.assert_array_equal(y, x.repeat(2, 2).repeat(2, 3))
    z = (floats(1, 1, 3, 3) + 1j * floats(1, 1, 3, 3)).astype(np.complex64)
    (y,) = run_op("Resize", [z, None, None, sizes], {"mode": "linear"})
    (real,) = run_op("Resize", [z.real.copy(), None, None, sizes], {"mode": "linear"})
    np.testing.assert_allclose(y.real, real, rtol=1e-5, atol=1e-6)


def test_a_new_size_is_rounded_as_onnx_infers_it() -> None:
    for size, scale in [(10, 0.7), (10, 0.3), (30, 1.1), (7, 1 / 7), (640, 1 / 3), (5, 0.5)]:
        (y,) = run_op("Resize", [floats(size), None, np.array([scale], np.float32)])
        assert y.shape == (int(np.float32(size) * np.float32(scale)),)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("size", [[2, 3, 4, 5], [2, 1, 3, 2, 4]])
def test_affine_grid_matches_the_reference(align_corners: int, size: list[int]) -> None:
    axes = len(size) - 2
    inputs = [floats(2, axes, axes + 1), np.array(size)]
    attributes = {"align_corners": align_corners}
    (expected,) = reference_op("AffineGrid", inputs, attributes)
    (y,) = run_op("AffineGrid", inputs, attributes)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
