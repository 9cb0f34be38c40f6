"""Elementwise arithmetic, comparison, logic, running sums, Det and Einsum."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from onward.providers.torch.kernels.math import _einsum_without_matmul
from tests.providers.torch.one_node import run_op
from tests.providers.torch.reference import reference_op

FLOATS: list[Any] = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16]
UNSIGNED: list[Any] = [np.uint8, np.uint16, np.uint32, np.uint64]
SIGNED: list[Any] = [np.int8, np.int16, np.int32, np.int64]


def _numbers(dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).uniform(0.1, 0.9, shape).astype(dtype)


UNARY: dict[str, Any] = {
    "Abs": np.abs,
    "Acos": np.arccos,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Erf": np.vectorize(math.erf, otypes=[float]),
    "Exp": np.exp,
    "Floor": np.floor,
    "Log": np.log,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Round": np.rint,
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Sqrt": np.sqrt,
    "Tan": np.tan,
}


@pytest.mark.sampled("op")
@pytest.mark.sampled("dtype")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", UNARY)
def test_unary_functions_keep_type_and_shape(op: str, dtype: Any) -> None:
    for shape in ((), (0, 3), (2, 3)):
        x = _numbers(dtype, *shape)
        (y,), want = run_op(op, [x]), UNARY[op](x.astype(np.float64))
        assert y.dtype == dtype
        # torch's own float32 erf is 14 units off in places
        assert_allclose(y.astype(np.float64), want, rtol=float(15 * ml_dtypes.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", [*UNSIGNED, *SIGNED])
@pytest.mark.parametrize(
    "op, attributes",
    [
        ("Add", {}),
        ("Sub", {}),
        ("Mul", {}),
        ("Div", {}),
        ("Mod", {"fmod": 0}),
        ("Mod", {"fmod": 1}),
        ("Max", {}),
        ("Min", {}),
        ("BitwiseAnd", {}),
        ("BitwiseOr", {}),
        ("BitwiseXor", {}),
        ("Equal", {}),
        ("Greater", {}),
        ("GreaterOrEqual", {}),
        ("Less", {}),
        ("LessOrEqual", {}),
    ],
)
def test_integers_of_every_width_are_exact_at_their_ends(
    op: str, attributes: dict[str, Any], dtype: Any
) -> None:
    info = np.iinfo(dtype)
    ends = [info.max, info.max - 1, info.max // 2, info.max // 2 + 1, info.min + 1, 1, 2, 3, 7]
    a, b = np.array(ends, dtype).reshape(-1, 1), np.array(ends, dtype).reshape(1, -1)
    (y,) = run_op(op, [a, b], attributes)
    with np.errstate(over="ignore"):
        (want,) = reference_op(op, [a, b], attributes)
    assert y.dtype == want.dtype
    assert_array_equal(y, want)


@pytest.mark.parametrize("dtype", [*UNSIGNED, *SIGNED])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts_by_any_distance_agree_with_the_reference(direction: str, dtype: Any) -> None:
    info = np.iinfo(dtype)
    bits = info.bits
    x = np.array([info.max, info.min, info.max // 2 + 1, 1, 77], dtype).reshape(-1, 1)
    y = np.array([0, 1, 2, bits - 1, bits, bits + 1, info.max, info.min], dtype)
    attributes = {"direction": direction}
    (z,), (want,) = (
        run_op("BitShift", [x, y], attributes),
        reference_op("BitShift", [x, y], attributes),
    )
    assert_array_equal(z, want)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_abs_and_sign_of_unsigned_integers(dtype: Any) -> None:
    x = np.array([0, 1, np.iinfo(dtype).max], dtype)
    assert_array_equal(run_op("Abs", [x])[0], x)
    assert_array_equal(run_op("Sign", [x])[0], np.array([0, 1, 1], dtype))
    assert_array_equal(run_op("BitwiseNot", [x])[0], ~x)
    low, high = np.array(1, dtype), np.array(np.iinfo(dtype).max - 1, dtype)
    assert_array_equal(run_op("Clip", [x, low, high])[0], np.clip(x, low, high))


def test_integer_division_truncates_towards_zero() -> None:
    a, b = np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])
    assert run_op("Div", [a, b])[0].tolist() == [3, -3, -3, 3]
    assert run_op("Mod", [a, b], {"fmod": 0})[0].tolist() == [1, 1, -1, -1]
    assert run_op("Mod", [a, b], {"fmod": 1})[0].tolist() == [1, -1, 1, -1]


def test_float_mod_follows_the_table_of_special_cases() -> None:
    inf, nan = np.inf, np.nan
    a = np.array([0.0, -0.0, inf, 1.0, 1.0, -1.0, 1.0, nan, -5.5], np.float32)
    b = np.array([-2.0, 2.0, 1.0, 0.0, inf, inf, -inf, 1.0, 2.0], np.float32)
    want = np.array([-0.0, 0.0, nan, nan, 1.0, inf, -inf, nan, 0.5], np.float32)
    (y,) = run_op("Mod", [a, b], {"fmod": 0})
    assert_array_equal(y, want)
    assert_array_equal(np.signbit(y[:2]), np.signbit(want[:2]))
    (y,) = run_op("Mod", [a[3:7], b[3:7]], {"fmod": 1})
    assert_array_equal(y, np.array([nan, 1.0, -1.0, 1.0], np.float32))


@pytest.mark.parametrize(
    "base, exponent", [(np.int32, np.float32), (np.float32, np.int64), (np.int64, np.int32),
                       (np.float16, np.float32), (np.float32, np.uint32), (np.int64, np.uint64)]
)  # fmt: skip
def test_a_power_has_its_base_type(base: Any, exponent: Any) -> None:
    x, y = np.array([[1], [2], [3]], base), np.array([0, 1, 2, 3], exponent)
    (z,), (want,) = run_op("Pow", [x, y]), reference_op("Pow", [x, y])
    assert z.dtype == base
    assert_allclose(z, want)


def test_variadic_operators_take_one_input_and_broadcast_many() -> None:
    x, y, z = _numbers(np.float32, 3), _numbers(np.float32, 2, 1), np.float32(0.5).reshape(())
    numpy = {
        "Sum": x + y + z,
        "Mean": (x + y + z) / 3,
        "Max": np.maximum(np.maximum(x, y), z),
        "Min": np.minimum(np.minimum(x, y), z),
    }
    for op, want in numpy.items():
        assert_array_equal(run_op(op, [x])[0], x)
        assert_allclose(run_op(op, [x, y, z])[0], want, rtol=1e-6)


def test_clip_takes_either_limit_or_none_and_the_upper_one_wins() -> None:
    x = np.array([-2.0, 0.0, 2.0, np.nan], np.float32)
    one, minus = np.array(1, np.float32), np.array(-1, np.float32)
    assert_array_equal(run_op("Clip", [x])[0], x)
    assert_array_equal(run_op("Clip", [x, None, one])[0], np.minimum(x, one))
    assert_array_equal(run_op("Clip", [x, minus])[0], np.maximum(x, minus))
    assert_array_equal(run_op("Clip", [x, one, minus])[0], [-1, -1, -1, np.nan])


@pytest.mark.parametrize("negative, positive", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.float8_e5m2])
def test_positive_and_negative_infinities_are_detected(
    dtype: Any, negative: int, positive: int
) -> None:
    x = np.array([np.inf, -np.inf, 1.0, np.nan], np.float32).astype(dtype)
    attributes = {"detect_negative": negative, "detect_positive": positive}
    (y,) = run_op("IsInf", [x], attributes)
    assert y.tolist() == [bool(positive), bool(negative), False, False]
    assert run_op("IsNaN", [x])[0].tolist() == [False, False, False, True]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint64, np.bool_, np.complex64, np.float16])
def test_where_chooses_elements_of_any_type(dtype: Any) -> None:
    condition = np.array([[True], [False]])
    x, y = np.array([1, 0, 1]).astype(dtype), np.array(1).astype(dtype)
    (z,) = run_op("Where", [condition, x, y])
    assert z.dtype == dtype
    assert_array_equal(z, np.where(condition, x, y))


@pytest.mark.sampled("dtype")
@pytest.mark.sampled("axis", "exclusive", "reverse")
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32, np.uint64, np.float16])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("exclusive, reverse", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_running_sums_and_products(dtype: Any, axis: int, exclusive: int, reverse: int) -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]], dtype)
    attributes = {"exclusive": exclusive, "reverse": reverse}
    for op in ("CumSum", "CumProd"):
        inputs = [x, np.array(axis)]
        (y,), (want,) = run_op(op, inputs, attributes), reference_op(op, inputs, attributes)
        assert y.dtype == dtype
        assert_array_equal(y, want)


def test_running_sum_of_an_empty_tensor_is_empty() -> None:
    x = np.zeros((2, 0), np.float32)
    for exclusive in (0, 1):
        (y,) = run_op("CumSum", [x, np.array(1, np.int32)], {"exclusive": exclusive})
        assert y.shape == (2, 0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_determinants_of_batches(dtype: Any) -> None:
    x = np.array([[[2, 1], [1, 3]], [[1, 2], [3, 4]]]).astype(dtype)
    (y,) = run_op("Det", [x])
    assert y.dtype == dtype
    assert_allclose(y.astype(np.float64), [5, -2], rtol=1e-2)
    assert run_op("Det", [x[0]])[0].shape == ()


EQUATIONS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("bA, Ac", [(2, 3), (3, 4)]),
    ("ba", [(2, 3)]),
    ("Ba", [(2, 3)]),
    ("ii", [(3, 3)]),
    ("...ii->...i", [(2, 3, 3)]),
    ("...ij,...jk->...ik", [(5, 1, 2, 3), (4, 3, 2)]),
    ("...i,...i", [(2, 3), (2, 3)]),
    ("i...->...", [(2, 3, 4)]),
    (" i , j -> j i ", [(2,), (3,)]),
    ("i,->i", [(3,), ()]),
    ("->", [()]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    ("i,i->", [(3,), (3,)]),
    ("ij->", [(2, 3)]),
    ("ij,k->k", [(2, 3), (4,)]),
    ("ij,ij->ij", [(0, 3), (0, 3)]),
]


@pytest.mark.sampled("equation")
@pytest.mark.sampled("dtype")
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, np.int32, np.uint16, np.int8]
)
@pytest.mark.parametrize("equation, shapes", EQUATIONS)
def test_every_form_of_einsum(equation: str, shapes: list[tuple[int, ...]], dtype: Any) -> None:
    random = np.random.default_rng(0)
    xs = [np.asarray(random.integers(0, 3, shape)).astype(dtype) for shape in shapes]
    (y,) = run_op("Einsum", xs, {"equation": equation})
    want = np.einsum(equation.replace(" ", ""), *xs)
    assert y.dtype == dtype
    assert_allclose(y.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize("equation, shapes", EQUATIONS)
def test_einsum_without_matmul_matches_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    random = np.random.default_rng(0)
    xs = [torch.tensor(random.integers(0, 3, shape), dtype=torch.int32) for shape in shapes]
    y = _einsum_without_matmul(*xs, equation=equation)
    assert y.dtype == torch.int32
    assert_array_equal(y.numpy(), np.einsum(equation.replace(" ", ""), *[x.numpy() for x in xs]))
