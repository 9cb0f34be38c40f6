"""Activation functions, and Dropout."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.providers.torch.one_node import run_op
from tests.providers.torch.reference import reference_op

FLOATS: list[Any] = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _elu(x: Any, alpha: float) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(x))


def _softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


_phi = np.vectorize(lambda x: (1 + math.erf(x / math.sqrt(2))) / 2, otypes=[float])

FORMULAS: list[tuple[str, dict[str, Any], Any]] = [
    ("Relu", {}, lambda x: np.maximum(x, 0)),
    ("LeakyRelu", {"alpha": 0.3}, lambda x: np.where(x > 0, x, 0.3 * x)),
    ("ThresholdedRelu", {"alpha": 0.7}, lambda x: np.where(x > 0.7, x, 0)),
    ("Elu", {"alpha": 2.0}, lambda x: _elu(x, 2)),
    ("Celu", {"alpha": 2.0}, lambda x: np.where(x > 0, x, 2 * np.expm1(x / 2))),
    ("Selu", {"alpha": 1.5, "gamma": 2.0}, lambda x: 2 * _elu(x, 1.5)),
    ("Gelu", {}, lambda x: x * _phi(x)),
    (
        "Gelu",
        {"approximate": "tanh"},
        lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    ("Mish", {}, lambda x: x * np.tanh(np.logaddexp(0, x))),
    ("Swish", {}, lambda x: x * _sigmoid(x)),
    ("Swish", {"alpha": 0.5}, lambda x: x * _sigmoid(0.5 * x)),
    ("Sigmoid", {}, _sigmoid),
    ("HardSigmoid", {}, lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    ("HardSigmoid", {"alpha": 1 / 6}, lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    ("HardSigmoid", {"alpha": 0.4, "beta": 0.1}, lambda x: np.clip(0.4 * x + 0.1, 0, 1)),
    ("HardSwish", {}, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    ("Tanh", {}, np.tanh),
    ("Softplus", {}, lambda x: np.logaddexp(0, x)),
    ("Softsign", {}, lambda x: x / (1 + np.abs(x))),
    ("Softmax", {"axis": 0}, lambda x: _softmax(x, 0)),
    ("Softmax", {}, lambda x: _softmax(x, -1)),
    ("LogSoftmax", {"axis": 1}, lambda x: np.log(_softmax(x, 1))),
    ("Shrink", {"lambd": 1.0, "bias": 0.5}, lambda x: np.sign(x) * (abs(x) > 1) * (abs(x) - 0.5)),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "op, attributes, formula", FORMULAS, ids=lambda v: v if v == str(v) else ""
)
def test_activations_match_their_formula(
    op: str, attributes: dict[str, Any], formula: Any, dtype: Any
) -> None:
    if op == "Shrink" and dtype == ml_dtypes.bfloat16:
        return  # not a type of Shrink
    x = np.linspace(-6, 6, 40).reshape(5, 8).astype(dtype)
    (y,) = run_op(op, [x], attributes)
    assert y.dtype == dtype
    eps = float(ml_dtypes.finfo(dtype).eps)
    # attributes are float32 even where the data is finer
    tolerance = max(16 * eps, 1e-6)
    assert_allclose(y.astype(float), formula(x.astype(float)), rtol=tolerance, atol=tolerance)
    assert run_op(op, [x[:0]], attributes)[0].shape == (0, 8)


def test_softplus_of_large_numbers_is_exact_in_float64() -> None:
    x = np.array([19.0, 21.0, 39.0, 41.0, 800.0])
    assert_allclose(run_op("Softplus", [x])[0], np.logaddexp(0, x), rtol=1e-15)


def test_swiglu_gates_its_second_input() -> None:
    a, b = np.linspace(-3, 3, 6, dtype=np.float32), np.arange(6, dtype=np.float32)
    (y,) = run_op("SwiGLU", [a, b], {"alpha": 1.5})
    assert_allclose(y, a * _sigmoid(1.5 * a) * b, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32, np.uint64])
def test_prelu_broadcasts_its_slope(dtype: Any) -> None:
    x = np.arange(-6, 6).reshape(1, 3, 4).astype(dtype)
    for shape in ((), (1,), (3, 1), (1, 3, 4)):
        slope = np.full(shape, 2, dtype)
        (y,) = run_op("PRelu", [x, slope])
        assert_array_equal(y, np.where(x > 0, x, x * slope))


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.uint16, np.uint64])
def test_shrink_of_integers_stays_an_integer(dtype: Any) -> None:
    x = np.array([0, 1, 2, 3, 100], dtype)
    attributes = {"lambd": 1.5, "bias": 1.5}
    (y,), (want,) = run_op("Shrink", [x], attributes), reference_op("Shrink", [x], attributes)
    assert_array_equal(y, want)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_hardmax_marks_the_first_of_equals(axis: int) -> None:
    x = np.random.default_rng(0).integers(0, 3, (3, 4, 5)).astype(np.float32)
    (y,), (want,) = (
        run_op("Hardmax", [x], {"axis": axis}),
        reference_op("Hardmax", [x], {"axis": axis}),
    )
    assert_array_equal(y, want)


def test_dropout_does_nothing_outside_training() -> None:
    x = np.ones((2, 3), np.float32)
    for inputs in ([x], [x, np.array(0.3, np.float32)], [x, None, np.array(False)],
                   [x, np.array(0, np.float32), np.array(True)]):  # fmt: skip
        y, mask = run_op("Dropout", inputs, outputs=2)
        assert_array_equal(y, x)
        assert mask.dtype == bool
        assert mask.all()
        assert_array_equal(run_op("Dropout", inputs)[0], x)


@pytest.mark.parametrize("attributes", [{}, {"seed": 7}])
@pytest.mark.parametrize("dtype", FLOATS)
def test_dropout_scales_what_it_keeps(attributes: dict[str, Any], dtype: Any) -> None:
    x = np.ones((100, 100), dtype)
    inputs = [x, np.array(0.25, np.float32), np.array(True)]
    y, mask = run_op("Dropout", inputs, attributes, outputs=2)
    assert y.dtype == dtype
    assert_array_equal(y != 0, mask)
    assert_allclose(y[mask].astype(float), 4 / 3, rtol=1e-2)
    assert 0.72 < mask.mean() < 0.78


def test_dropout_with_a_seed_is_reproducible() -> None:
    x = np.ones((100,), np.float32)
    inputs = [x, np.array(0.5, np.float32), np.array(True)]
    first, second = (run_op("Dropout", inputs, {"seed": 3})[0] for _ in range(2))
    other = run_op("Dropout", inputs, {"seed": 4})[0]
    assert_array_equal(first, second)
    assert (first != other).any()


@pytest.mark.parametrize("attributes", [{}, {"seed": 7}])
def test_dropout_with_ratio_one_is_zero(attributes: dict[str, Any]) -> None:
    x = np.ones((3, 4), np.float32)
    y, mask = run_op(
        "Dropout", [x, np.array(1.0, np.float32), np.array(True)], attributes, outputs=2
    )
    assert not y.any()
    assert not mask.any()
