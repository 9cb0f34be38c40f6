"""Pooling beyond the node tests of ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.providers.torch.one_node import run_op
from tests.providers.torch.reference import reference_op

rng = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float32)


def pooled(
    x: np.ndarray[Any, Any], function: Any, attributes: dict[str, Any], counts: list[int]
) -> Any:
    """The definition: `function` of (elements inside, inside or padding) of each window."""
    rank = x.ndim - 2
    kernel, pads = attributes["kernel_shape"], attributes.get("pads", [0] * 2 * rank)
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    y = np.empty((*x.shape[:2], *counts))
    for place in np.ndindex(*y.shape):
        inside, padded = [], 0
        for tap in np.ndindex(*kernel):
            at = [place[2 + i] * strides[i] + tap[i] * dilations[i] - pads[i] for i in range(rank)]
            bounds = list(zip(at, x.shape[2:], pads[rank:]))
            padded += all(p < size + end for p, size, end in bounds)
            if all(0 <= p < size for p, size, _ in bounds):
                inside.append(
                    (x[(*place[:2], *at)], np.ravel_multi_index((*place[:2], *at), x.shape))
                )
        y[place] = function(inside, padded)
    return y


WINDOWS: dict[str, tuple[tuple[int, ...], dict[str, Any], list[int]]] = {
    "1-D": ((2, 2, 9), {"kernel_shape": [3], "strides": [2]}, [4]),
    "3-D": ((1, 2, 4, 5, 3), {"kernel_shape": [2, 3, 2]}, [3, 3, 2]),
    "4-D": (
        (1, 1, 3, 3, 4, 3),
        {"kernel_shape": [2, 2, 2, 2], "pads": [1, 0, 0, 0, 0, 0, 0, 1]},
        [3, 2, 3, 3],
    ),
    "pads": (
        (1, 2, 5, 6),
        {"kernel_shape": [3, 2], "pads": [1, 1, 1, 1], "strides": [2, 2]},
        [3, 4],
    ),
    "pads of one side": ((1, 2, 5, 6), {"kernel_shape": [3, 3], "pads": [0, 2, 1, 0]}, [4, 6]),
    "pads over half a kernel": (
        (1, 1, 4, 4),
        {"kernel_shape": [3, 3], "pads": [2, 2, 2, 2]},
        [6, 6],
    ),
    "dilated": (
        (1, 2, 7, 8),
        {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 1, 1, 1]},
        [5, 7],
    ),
    "ceil": ((1, 2, 6, 6), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, [3, 3]),
    "ceil, pads of one side": (
        (1, 2, 6, 5),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 1, 0, 0], "ceil_mode": 1},
        [3, 3],
    ),
    "ceil, a window in the padding": (
        (1, 1, 2, 2),
        {"kernel_shape": [1, 1], "strides": [2, 2], "pads": [0, 0, 1, 1], "ceil_mode": 1},
        [1, 1],
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("include", [0, 1])
def test_average_of_each_window(name: str, include: int) -> None:
    shape, attributes, counts = WINDOWS[name]
    x = floats(*shape)

    def mean(inside: list[tuple[float, int]], padded: int) -> float:
        return sum(v for v, _ in inside) / (padded if include else len(inside))

    (y,) = run_op("AveragePool", [x], {**attributes, "count_include_pad": include})
    np.testing.assert_allclose(y, pooled(x, mean, attributes, counts), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("outputs", [1, 2])
def test_largest_of_each_window_and_its_index(name: str, outputs: int) -> None:
    shape, attributes, counts = WINDOWS[name]
    x = floats(*shape)
    y, *index = run_op("MaxPool", [x], attributes, outputs=outputs)
    np.testing.assert_array_equal(
        y, pooled(x, lambda inside, _: max(inside)[0], attributes, counts).astype(np.float32)
    )
    if index:
        expected = pooled(x, lambda inside, _: max(inside)[1], attributes, counts)
        np.testing.assert_array_equal(index[0], expected)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_norm_of_each_window(name: str, p: int) -> None:
    shape, attributes, counts = WINDOWS[name]
    x = floats(*shape)

    def norm(inside: list[tuple[float, int]], _: int) -> float:
        return float(sum(abs(v) ** p for v, _ in inside) ** (1 / p))

    (y,) = run_op("LpPool", [x], {**attributes, "p": p})
    np.testing.assert_allclose(y, pooled(x, norm, attributes, counts), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 0, 2]])
def test_column_major_indices_count_the_first_axis_fastest(pads: list[int]) -> None:
    x = floats(2, 3, 4, 5)
    attributes = {"kernel_shape": [2, 3], "strides": [2, 1], "pads": pads}
    _, rows = run_op("MaxPool", [x], attributes, outputs=2)
    _, columns = run_op("MaxPool", [x], {**attributes, "storage_order": 1}, outputs=2)
    plane, within = np.divmod(rows, 20)
    np.testing.assert_array_equal(columns, plane * 20 + within % 5 * 4 + within // 5)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_largest_of_small_integers_ignores_padding(dtype: Any, auto_pad: str) -> None:
    x = rng.integers(*((-128, 0) if dtype is np.int8 else (0, 3)), (1, 2, 5, 6)).astype(dtype)
    y, index = run_op("MaxPool", [x], {"kernel_shape": [2, 2], "auto_pad": auto_pad}, outputs=2)
    assert y.dtype == dtype
    np.testing.assert_array_equal(x.ravel()[index], y)


@pytest.mark.parametrize("op", ["AveragePool", "LpPool"])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_automatic_padding_matches_the_reference(op: str, auto_pad: str) -> None:
    x = floats(1, 2, 6, 7)
    attributes = {"kernel_shape": [3, 2], "strides": [2, 1], "auto_pad": auto_pad}
    (expected,) = reference_op(op, [x], attributes)
    (y,) = run_op(op, [x], attributes)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (1, 2, 3, 2, 4)])
def test_global_pools_reduce_every_inner_axis(shape: tuple[int, ...]) -> None:
    x = floats(*shape)
    inner = tuple(range(2, x.ndim))
    expected = {
        "GlobalAveragePool": x.mean(inner, keepdims=True),
        "GlobalMaxPool": x.max(inner, keepdims=True),
        "GlobalLpPool": np.sqrt((x**2).sum(inner, keepdims=True)),
    }
    for op, value in expected.items():
        np.testing.assert_allclose(run_op(op, [x])[0], value, rtol=1e-5)
    (y,) = run_op("GlobalLpPool", [x], {"p": 3})
    np.testing.assert_allclose(y, (abs(x) ** 3).sum(inner, keepdims=True) ** (1 / 3), rtol=1e-4)


@pytest.mark.parametrize("shape", [(2, 3, 8), (1, 2, 6, 4), (1, 2, 4, 4, 2)])
def test_unpooling_puts_each_maximum_back(shape: tuple[int, ...]) -> None:
    x = floats(*shape)
    attributes = {"kernel_shape": [2] * (x.ndim - 2), "strides": [2] * (x.ndim - 2)}
    y, index = run_op("MaxPool", [x], attributes, outputs=2)
    (back,) = run_op("MaxUnpool", [y, index], attributes)
    kept = np.isin(np.arange(x.size).reshape(x.shape), index)
    np.testing.assert_array_equal(back, np.where(kept, x, 0))


def test_unpooling_to_a_larger_shape_adds_zeros_behind() -> None:
    x, index = floats(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]])
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    inputs = [x, index, np.array([1, 1, 5, 5])]
    (expected,) = reference_op("MaxUnpool", inputs, attributes)
    np.testing.assert_array_equal(run_op("MaxUnpool", inputs, attributes)[0], expected)


def test_region_maxima_are_those_of_their_bins() -> None:
    x = floats(2, 3, 8, 8)
    rois = np.array([[0, 0, 0, 7, 7], [1, 2, 1, 5, 4], [1, 6, 6, 12, 12]], np.float32)
    (y,) = run_op("MaxRoiPool", [x, rois], {"pooled_shape": [2, 2]})
    np.testing.assert_array_equal(y[0, :, 0, 0], x[0, :, :4, :4].max((1, 2)))
    np.testing.assert_array_equal(y[1, :, 1, 0], x[1, :, 3:5, 2:4].max((1, 2)))
    np.testing.assert_array_equal(y[2, :, 0, 0], x[1, :, 6:, 6:].max((1, 2)))
    assert not y[2, :, 1, 1].any()  # wholly outside


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_aligned_regions_match_the_reference(mode: str, transformation: str, ratio: int) -> None:
    x = floats(2, 3, 9, 10)
    rois = np.array([[0, 0, 9, 9], [1, 2, 17, 13], [5, 5, 4, 4], [-4, 3, 30, 30]], np.float32)
    inputs = [x, rois, np.array([0, 1, 1, 0])]
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": transformation,
        "output_height": 3,
        "output_width": 2,
        "sampling_ratio": ratio,
        "spatial_scale": 0.5,
    }
    (expected,) = reference_op("RoiAlign", inputs, attributes)
    (y,) = run_op("RoiAlign", inputs, attributes)
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_no_regions_give_an_empty_result(mode: str) -> None:
    inputs = [floats(1, 3, 4, 4), np.zeros((0, 4), np.float32), np.zeros(0, np.int64)]
    (y,) = run_op("RoiAlign", inputs, {"output_height": 2, "output_width": 2, "mode": mode})
    assert y.shape == (0, 3, 2, 2)
