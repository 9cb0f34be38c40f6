"""Reductions, ArgMax, ArgMin and TopK."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.providers.torch.one_node import run_op
from tests.providers.torch.reference import reference_op

REDUCTIONS: dict[str, Any] = {
    "ReduceL1": lambda x, **how: np.sum(np.abs(x), **how),
    "ReduceL2": lambda x, **how: np.sqrt(np.sum(x * x, **how)),
    "ReduceLogSum": lambda x, **how: np.log(np.sum(x, **how)),
    "ReduceLogSumExp": lambda x, **how: np.log(np.sum(np.exp(x), **how)),
    "ReduceMax": np.max,
    "ReduceMean": np.mean,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
    "ReduceSumSquare": lambda x, **how: np.sum(x * x, **how),
}
FLOATS: list[Any] = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
INTEGERS: list[Any] = [np.int32, np.int64, np.uint32, np.uint64]


@pytest.mark.sampled("op")
@pytest.mark.sampled("dtype")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_over_any_axes(op: str, dtype: Any) -> None:
    x = np.random.default_rng(0).uniform(0.5, 1.5, (2, 3, 4)).astype(dtype)
    for axes in (None, [], [0], [-1], [2, 0], [-2, 0, 2]):
        for keepdims in (0, 1):
            inputs = [x] if axes is None else [x, np.array(axes, np.int64)]
            (y,) = run_op(op, inputs, {"keepdims": keepdims})
            chosen = tuple(axes) if axes else None
            want = REDUCTIONS[op](x.astype(float), axis=chosen, keepdims=bool(keepdims))
            assert y.dtype == dtype
            assert y.shape == want.shape
            tolerance = float(8 * ml_dtypes.finfo(dtype).eps)
            assert_allclose(y.astype(float), want, rtol=tolerance, atol=tolerance)


@pytest.mark.sampled("op")
@pytest.mark.sampled("dtype")
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", sorted(REDUCTIONS.keys() - {"ReduceLogSum", "ReduceLogSumExp"}))
def test_reductions_of_integers_stay_integers(op: str, dtype: Any) -> None:
    x = np.array([[1, 2, 3], [4, 5, 7]], dtype)
    for axes in ([0], [1], [0, 1]):
        (y,) = run_op(op, [x, np.array(axes)], {"keepdims": 0})
        assert y.dtype == dtype
        assert_array_equal(y, REDUCTIONS[op](x.astype(float), axis=tuple(axes)).astype(dtype))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
def test_extremes_of_unsigned_integers_are_exact(dtype: Any) -> None:
    top = np.iinfo(dtype).max
    x = np.array([top, 0, top // 2 + 1], dtype)
    assert run_op("ReduceMax", [x], {"keepdims": 0})[0] == top
    assert run_op("ReduceMin", [x], {"keepdims": 0})[0] == 0
    assert run_op("ReduceMin", [x[[0, 2]]], {"keepdims": 0})[0] == top // 2 + 1


def test_a_mean_of_integers_truncates_towards_zero() -> None:
    x = np.array([[-1, -2], [1, 2]], np.int32)
    assert run_op("ReduceMean", [x, np.array([1])], {"keepdims": 0})[0].tolist() == [-1, 1]


@pytest.mark.parametrize("op", REDUCTIONS)
def test_no_axes_may_mean_no_reduction_but_the_rest_is_computed(op: str) -> None:
    x = np.array([[-1.0, 2.0], [3.0, 4.0]], np.float32) + 2
    rest: dict[str, Any] = {"ReduceLogSum": np.log, "ReduceSumSquare": np.square}
    for inputs in ([x], [x, np.array([], np.int64)]):
        (y,) = run_op(op, inputs, {"noop_with_empty_axes": 1})
        assert_allclose(y, rest.get(op, lambda x: x)(x), rtol=1e-6)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_a_scalar_is_its_own_reduction(op: str) -> None:
    x = np.array(2.0, np.float32)
    (y,) = run_op(op, [x])
    assert y.shape == ()
    assert_allclose(y, REDUCTIONS[op](x), rtol=1e-6)


NEUTRAL: dict[str, float] = {
    "ReduceL1": 0,
    "ReduceL2": 0,
    "ReduceLogSum": -np.inf,
    "ReduceLogSumExp": -np.inf,
    "ReduceMax": -np.inf,
    "ReduceMin": np.inf,
    "ReduceProd": 1,
    "ReduceSum": 0,
    "ReduceSumSquare": 0,
}


@pytest.mark.parametrize("op", NEUTRAL)
def test_reduction_of_an_empty_tensor_is_neutral(op: str) -> None:
    x = np.zeros((2, 0, 3), np.float32)
    for axes in ([1], [1, 0], [0, 1, 2]):
        for keepdims in (0, 1):
            (y,) = run_op(op, [x, np.array(axes)], {"keepdims": keepdims})
            assert y.shape == np.sum(x, axis=tuple(axes), keepdims=bool(keepdims)).shape
            assert (y == NEUTRAL[op]).all()
    assert run_op(op, [x, np.array([2])], {"keepdims": 0})[0].shape == (2, 0)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.uint64, np.bool_])
def test_extremes_of_an_empty_tensor_are_the_limits_of_the_type(dtype: Any) -> None:
    x = np.zeros((0,), dtype)
    low, high = (False, True) if dtype == np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    assert run_op("ReduceMax", [x], {"keepdims": 0})[0] == low
    assert run_op("ReduceMin", [x], {"keepdims": 0})[0] == high


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint16, np.uint64])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_the_first_or_the_last_of_equals_is_found(op: str, last: int, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 3, (4, 5, 6)).astype(dtype)
    for axis in (0, 1, -1):
        for keepdims in (0, 1):
            attributes = {"axis": axis, "keepdims": keepdims, "select_last_index": last}
            (y,), (want,) = run_op(op, [x], attributes), reference_op(op, [x], attributes)
            assert y.dtype == np.int64
            assert_array_equal(y, want)


TOP_K_TYPES = [*FLOATS, *INTEGERS, np.int8, np.uint8, np.int16, np.uint16]


@pytest.mark.parametrize("dtype", TOP_K_TYPES)
@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_puts_the_first_of_equals_first(largest: int, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 4, (5, 6, 7)).astype(dtype)
    for axis in (0, 1, -1):
        for k in (0, 1, 3, x.shape[axis]):
            inputs, attributes = [x, np.array([k])], {"axis": axis, "largest": largest}
            values, indices = run_op("TopK", inputs, attributes, 2)
            wanted = reference_op("TopK", [x.astype(np.float64), inputs[1]], attributes, 2)
            assert values.dtype == dtype
            assert_array_equal(values.astype(np.float64), wanted[0])
            assert_array_equal(indices, wanted[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_top_k_orders_every_kind_of_float(dtype: Any) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([-0.0, 1e-7, -inf, nan, 0.0, inf, -1.5, 1e-7, -1e-7, 2.5], dtype)
    values, indices = run_op("TopK", [x, np.array([10])], {}, 2)
    assert indices.tolist() == [3, 5, 9, 1, 7, 0, 4, 8, 6, 2]
    assert_array_equal(values, x[indices])
    _, indices = run_op("TopK", [x, np.array([10])], {"largest": 0}, 2)
    assert indices.tolist() == [2, 6, 8, 0, 4, 1, 7, 9, 5, 3]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16, np.uint32, np.uint64])
def test_top_k_reaches_the_ends_of_integers(dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 1, info.max // 2, info.max - 1], dtype)
    values, indices = run_op("TopK", [x, np.array([5])], {}, 2)
    assert values.tolist() == sorted(x.tolist(), reverse=True)
    assert_array_equal(values, x[indices])
