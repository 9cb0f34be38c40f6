"""Normalisations beyond the node tests of ONNX."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.providers.torch.one_node import run_op

rng = np.random.default_rng(0)
Array = np.ndarray[Any, Any]


def floats(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def standardized(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    wide = x.astype(np.float64)
    mean, var = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    return (wide - mean) / np.sqrt(var + epsilon)


def for_channels(x: Array, rank: int) -> Array:
    return x.reshape(-1, *[1] * (rank - 2))


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 2, 3)])
def test_batch_normalization_in_training_updates_running_statistics(shape: Any) -> None:
    x, scale, b, mean, var = floats(*shape), *(floats(3) for _ in range(3)), abs(floats(3))
    attributes = {"training_mode": 1, "momentum": 0.7, "epsilon": 1e-3}
    y, running_mean, running_var = run_op(
        "BatchNormalization", [x, scale, b, mean, var], attributes, outputs=3
    )
    axes = (0, *range(2, x.ndim))
    expected = standardized(x, axes, 1e-3) * for_channels(scale, x.ndim) + for_channels(b, x.ndim)
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(running_mean, mean * 0.7 + x.mean(axes) * 0.3, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(running_var, var * 0.7 + x.var(axes) * 0.3, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("types", ["eee", "eff", "efe", "fdd", "ddf", "dee"])
def test_batch_normalization_takes_scale_and_statistics_of_other_types(types: str) -> None:
    x, scale, b, mean, var = floats(2, 3, 4), *(floats(3) for _ in range(3)), abs(floats(3)) + 1
    inputs = [x, scale, b, mean, var]
    typed = [value.astype(types[i]) for value, i in zip(inputs, (0, 1, 1, 2, 2))]
    (y,) = run_op("BatchNormalization", typed, {})
    expected = (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5) * scale[:, None] + b[:, None]
    assert y.dtype == typed[0].dtype
    np.testing.assert_allclose(y, expected, rtol=2e-2, atol=2e-2)
    y, running_mean, _ = run_op("BatchNormalization", typed, {"training_mode": 1}, outputs=3)
    assert (y.dtype, running_mean.dtype) == (typed[0].dtype, typed[3].dtype)


@pytest.mark.parametrize("training", [0, 1])
def test_batch_normalization_of_a_vector_has_one_channel(training: int) -> None:
    x, (scale, b, mean), var = floats(6), floats(3, 1), np.ones(1, np.float32)
    attributes = {"training_mode": training}
    y, *_ = run_op("BatchNormalization", [x, scale, b, mean, var], attributes, 1 + 2 * training)
    whole = standardized(x, (0,), 1e-5) if training else (x - mean) / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(y, whole * scale + b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 3, 2, 3, 2), (2, 3, 1)])
def test_instance_normalization_standardizes_each_channel(shape: Any) -> None:
    x, scale, b = floats(*shape), floats(3), floats(3)
    (y,) = run_op("InstanceNormalization", [x, scale, b], {"epsilon": 1e-2})
    expected = standardized(x, tuple(range(2, x.ndim)), 1e-2)
    expected = expected * for_channels(scale, x.ndim) + for_channels(b, x.ndim)
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (1, 6, 3, 4)])
def test_group_normalization_standardizes_each_group(shape: Any, groups: int) -> None:
    x, scale, b = floats(*shape), floats(6), floats(6)
    (y,) = run_op("GroupNormalization", [x, scale, b], {"num_groups": groups, "epsilon": 1e-2})
    expected = standardized(x.reshape(shape[0], groups, -1), (2,), 1e-2).reshape(shape)
    expected = expected * for_channels(scale, x.ndim) + for_channels(b, x.ndim)
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-5)


# the axis, the shapes of scale and bias
LAYERS: dict[str, tuple[int, tuple[int, ...], tuple[int, ...] | None]] = {
    "last axis": (-1, (5,), (5,)),
    "no bias": (-1, (5,), None),
    "two axes": (1, (4, 5), (4, 5)),
    "all axes": (0, (3, 4, 5), (3, 4, 5)),
    "broadcast scale": (1, (5,), (4, 5)),
    "broadcast bias": (1, (4, 5), (1, 5)),
    "one scale": (-2, (1,), None),
    "scale over other axes": (-1, (3, 1, 5), (4, 1)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", ["f", "e", "d", ml_dtypes.bfloat16])
def test_layer_normalization_scales_what_it_standardized(name: str, dtype: Any) -> None:
    axis, scale_shape, bias_shape = LAYERS[name]
    x, scale = floats(3, 4, 5).astype(dtype), floats(*scale_shape).astype(dtype)
    b = None if bias_shape is None else floats(*bias_shape).astype(dtype)
    attributes = {"axis": axis, "epsilon": 1e-2}
    y, mean, deviation = run_op("LayerNormalization", [x, scale, b], attributes, outputs=3)
    axes = tuple(range(axis % 3, 3))
    wide = x.astype(np.float64)
    expected = standardized(x, axes, 1e-2) * scale + (0 if b is None else b)
    tolerance = 1e-5 if y.itemsize > 2 else 5e-2
    assert (y.dtype, mean.dtype, deviation.dtype) == (x.dtype, np.float32, np.float32)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(mean, wide.mean(axes, keepdims=True), rtol=1e-4, atol=1e-6)
    inverse = 1 / np.sqrt(wide.var(axes, keepdims=True) + 1e-2)
    np.testing.assert_allclose(deviation, inverse, rtol=1e-4)
    (alone,) = run_op("LayerNormalization", [x, scale, b], attributes)
    np.testing.assert_allclose(alone.astype("d"), y.astype("d"), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("types", ["ff", "ee", "ef", "fe"])
@pytest.mark.parametrize("whole", [True, False])
def test_root_mean_square_normalization_has_the_type_of_its_scale(
    axis: int, types: str, whole: bool
) -> None:
    x = floats(3, 4, 5).astype(types[0])
    scale = floats(*(x.shape[axis:] if whole else (1,))).astype(types[1])
    (y,) = run_op("RMSNormalization", [x, scale], {"axis": axis, "epsilon": 1e-2})
    wide = x.astype(np.float64)
    square = (wide**2).mean(tuple(range(axis % 3, 3)), keepdims=True)
    assert y.dtype == scale.dtype
    np.testing.assert_allclose(y, wide / np.sqrt(square + 1e-2) * scale, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("shape", [(2, 7), (2, 7, 3), (1, 7, 2, 3)])
def test_local_response_looks_half_of_size_to_each_side(size: int, shape: Any) -> None:
    x, (alpha, beta, bias) = floats(*shape), (0.5, 0.7, 1.5)
    attributes = {"alpha": alpha, "beta": beta, "bias": bias, "size": size}
    (y,) = run_op("LRN", [x], attributes)
    sums = [
        (x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1] ** 2).sum(1)
        for c in range(x.shape[1])
    ]
    expected = x / (bias + alpha / size * np.stack(sums, 1)) ** beta
    np.testing.assert_allclose(y, expected, rtol=1e-4)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_row_of_zeros_stays_zero_under_lp_normalization(p: int, axis: int) -> None:
    x = floats(3, 4)
    np.moveaxis(x, axis, -1)[1] = 0
    (y,) = run_op("LpNormalization", [x], {"p": p, "axis": axis})
    norm = (abs(x) ** p).sum(axis, keepdims=True) ** (1 / p)
    np.testing.assert_allclose(y, x / np.where(norm == 0, 1, norm), rtol=1e-5)


@pytest.mark.parametrize("axes", [[0, 2, 3], [1], [-1, -2], [0, 1, 2, 3]])
def test_mean_variance_normalization_over_any_axes(axes: list[int]) -> None:
    x = floats(2, 3, 4, 5)
    (y,) = run_op("MeanVarianceNormalization", [x], {"axes": axes})
    np.testing.assert_allclose(y, standardized(x, tuple(axes), 0.0), rtol=1e-3, atol=1e-5)
