"""Random numbers: their type, shape and moments, and that a seed repeats them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from onnx import TensorProto, helper

from tests.providers.torch.one_node import run_op

FLOATS: list[Any] = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
SHAPE = (100, 50)


def _number(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("seed", [None, 0.5])
def test_normal_numbers_have_their_mean_and_scale(dtype: Any, seed: float | None) -> None:
    attributes: dict[str, Any] = {"mean": 3.0, "scale": 2.0, "dtype": _number(dtype)}
    attributes |= {} if seed is None else {"seed": seed}
    (x,) = run_op("RandomNormal", [], {"shape": SHAPE, **attributes})
    (y,) = run_op("RandomNormalLike", [np.zeros(SHAPE, np.int32)], attributes)
    for drawn in (x, y):
        assert drawn.dtype == dtype
        assert drawn.shape == SHAPE
        assert abs(drawn.astype(float).mean() - 3) < 0.2
        assert abs(drawn.astype(float).std() - 2) < 0.2


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("seed", [None, 0.5])
def test_uniform_numbers_stay_between_their_ends(dtype: Any, seed: float | None) -> None:
    attributes: dict[str, Any] = {"low": -1.0, "high": 3.0, "dtype": _number(dtype)}
    attributes |= {} if seed is None else {"seed": seed}
    (x,) = run_op("RandomUniform", [], {"shape": SHAPE, **attributes})
    (y,) = run_op("RandomUniformLike", [np.zeros(SHAPE, np.int32)], attributes)
    for drawn in (x, y):
        assert drawn.dtype == dtype
        assert drawn.shape == SHAPE
        assert drawn.min() >= -1
        assert drawn.max() <= 3
        assert abs(drawn.astype(float).mean() - 1) < 0.1


def test_without_a_type_the_input_gives_it() -> None:
    x = np.zeros((2, 0), np.float16)
    assert run_op("RandomNormalLike", [x])[0].dtype == np.float16
    assert run_op("RandomUniformLike", [x])[0].shape == (2, 0)
    assert run_op("Bernoulli", [x])[0].dtype == np.float16


@pytest.mark.parametrize("dtype", [*FLOATS, np.bool_, np.int8, np.uint16, np.uint64])
def test_bernoulli_draws_ones_with_its_probability(dtype: Any) -> None:
    p = np.full(SHAPE, 0.3, np.float32)
    for attributes in ({}, {"seed": 1.0}):
        (y,) = run_op("Bernoulli", [p], {"dtype": _number(dtype), **attributes})
        assert y.dtype == dtype
        assert 0.27 < y.astype(float).mean() < 0.33
    assert not run_op("Bernoulli", [np.zeros(SHAPE, np.float32)])[0].any()
    assert run_op("Bernoulli", [np.ones(SHAPE, np.float32)])[0].all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_multinomial_draws_classes_by_their_log_probability(dtype: Any) -> None:
    x = np.log(np.array([[0.5, 0.25, 0.25], [1e-6, 1.0, 1e-6]])).astype(dtype)
    (y,) = run_op("Multinomial", [x], {"sample_size": 4000, "seed": 2.0})
    assert y.dtype == np.int32
    assert y.shape == (2, 4000)
    assert abs((y[0] == 0).mean() - 0.5) < 0.05
    assert (y[1] == 1).mean() > 0.99
    (y,) = run_op("Multinomial", [x], {"dtype": TensorProto.INT64})
    assert y.dtype == np.int64
    assert y.shape == (2, 1)


DRAWS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("RandomNormal", [], {"shape": SHAPE}),
    ("RandomUniform", [], {"shape": SHAPE}),
    ("RandomNormalLike", [np.zeros(SHAPE, np.float32)], {}),
    ("RandomUniformLike", [np.zeros(SHAPE, np.float32)], {}),
    ("Bernoulli", [np.full(SHAPE, 0.5, np.float32)], {}),
    ("Multinomial", [np.zeros(SHAPE, np.float32)], {"sample_size": 5}),
]


@pytest.mark.parametrize("op, inputs, attributes", DRAWS, ids=[op for op, *_ in DRAWS])
def test_a_seed_repeats_its_numbers_and_another_does_not(
    op: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    first, second = (run_op(op, inputs, {"seed": 0.1, **attributes})[0] for _ in range(2))
    (other,) = run_op(op, inputs, {"seed": 0.2, **attributes})
    (unseeded,) = run_op(op, inputs, attributes)
    assert_array_equal(first, second)
    assert (first != other).any()
    assert (first != unseeded).any()
