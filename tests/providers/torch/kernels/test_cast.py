"""Cast, CastLike and BitCast, between all types that are numbers."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from numpy.testing import assert_array_equal
from onnx import TensorProto, helper

from tests.providers.torch.one_node import run_op
from tests.providers.torch.reference import reference_op

Array = np.ndarray[Any, Any]
# onnx-ir 1.0 does not know them yet
FLOAT6 = (
    [ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn] if hasattr(ir.DataType, "FLOAT6E2M3") else []
)
NUMBERS = [
    np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.bool_,
    np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
    ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2,
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e8m0fnu,
    ml_dtypes.float4_e2m1fn, *FLOAT6,
]  # fmt: skip
FLOAT8 = [
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e5m2fnuz,
]
SMALL_FLOATS = [ml_dtypes.float4_e2m1fn, *FLOAT6]


def _cast(x: Array, to: Any, **attributes: Any) -> Array:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    (y,) = run_op("Cast", [x], {"to": number, **attributes})
    assert y.dtype == to
    return np.asarray(y)


def _bits(x: Array) -> Array:
    return x.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[x.dtype.itemsize])


@pytest.mark.parametrize("source", NUMBERS, ids=lambda t: np.dtype(t).name)
def test_values_that_both_types_have_are_exact(source: Any) -> None:
    for target in NUMBERS:
        x = np.array([[1, 1], [1, 1]]).astype(source)
        assert_array_equal(_cast(x, target).astype(np.float64), np.ones((2, 2)))


def _interesting_floats() -> Array:
    """All float16s: every rounding, tie, subnormal, infinity and NaN that a byte can meet."""
    return np.arange(2**16, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize("target", FLOAT8, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("source", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_float8s_round_and_saturate_as_ml_dtypes_do(
    source: Any, target: Any, saturate: int
) -> None:
    with np.errstate(all="ignore"):
        x = np.concatenate([_interesting_floats().astype(np.float32), [1e30, -1e30]]).astype(source)
        largest = float(ml_dtypes.finfo(target).max)
        want = (np.clip(x.astype(np.float32), -largest, largest) if saturate else x).astype(target)
    y = _cast(x, target, saturate=saturate)
    assert_array_equal(np.isnan(y.astype(np.float32)), np.isnan(want.astype(np.float32)))
    number = ~np.isnan(want.astype(np.float32))
    assert_array_equal(_bits(y)[number], _bits(want)[number])


@pytest.mark.parametrize("target", SMALL_FLOATS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_small_floats_round_as_ml_dtypes_do(source: Any, target: Any) -> None:
    with np.errstate(all="ignore"):
        x = _interesting_floats().astype(source)
        x = x[~np.isnan(x)]  # they have no NaN
        want = x.astype(target)
    assert_array_equal(_bits(_cast(x, target)), _bits(want))


@pytest.mark.parametrize(
    "target", [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2]
)
@pytest.mark.parametrize("source", [np.int8, np.uint16, np.int64, np.float32])
def test_small_integers_keep_the_low_bits(source: Any, target: Any) -> None:
    x = np.arange(100).astype(source) if source == np.uint16 else np.arange(-50, 50).astype(source)
    want = x.astype(np.int64).astype(np.int8).astype(target)
    assert_array_equal(_cast(x, target).astype(np.int64), want.astype(np.int64))


def test_bare_exponents_round_as_asked() -> None:
    x = np.array([1.0, 1.25, 1.5, 1.75, 3.0, 2.0**-127, 1.2 * 2.0**-127, 0.0, 2.0**-130,
                  2.0**127, 1.9 * 2.0**127, np.inf, np.nan], np.float32)  # fmt: skip
    tiny, top, nan = 2.0**-127, 2.0**127, np.nan
    expected = {
        ("up", 1): [1, 2, 2, 2, 4, tiny, 2 * tiny, tiny, tiny, top, top, top, nan],
        ("down", 1): [1, 1, 1, 1, 2, tiny, tiny, tiny, tiny, top, top, top, nan],
        ("nearest", 1): [1, 1, 2, 2, 4, tiny, tiny, tiny, tiny, top, top, top, nan],
        ("nearest", 0): [1, 1, 2, 2, 4, tiny, tiny, nan, nan, top, nan, nan, nan],
        ("up", 0): [1, 2, 2, 2, 4, tiny, 2 * tiny, nan, nan, top, nan, nan, nan],
    }
    for (round_mode, saturate), want in expected.items():
        y = _cast(x, ml_dtypes.float8_e8m0fnu, round_mode=round_mode, saturate=saturate)
        assert_array_equal(y.astype(np.float32), np.array(want, np.float32))


@pytest.mark.parametrize("source", FLOAT8, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("target", [np.float16, np.float32, ml_dtypes.bfloat16, np.float64])
def test_all_float8s_round_trip(source: Any, target: Any) -> None:
    x = np.arange(256, dtype=np.uint8).view(source)
    with np.errstate(invalid="ignore"):  # numpy warns of the NaNs
        assert_array_equal(_cast(x, target).astype(np.float64), x.astype(np.float64))


@pytest.mark.parametrize("like", NUMBERS, ids=lambda t: np.dtype(t).name)
def test_cast_like_takes_the_type_of_its_second_input(like: Any) -> None:
    x = np.array([0.0, 1.0, 1.0], np.float32)
    (y,) = run_op("CastLike", [x, np.zeros(1, like)])
    (want,) = reference_op("CastLike", [x, np.zeros(1, like)])
    assert y.dtype == like
    assert_array_equal(y.astype(np.float32)[1:], want.astype(np.float32)[1:])


SAME_WIDTH = [
    (np.float32, np.int32, np.uint32),
    (np.float16, np.int16, np.uint16, ml_dtypes.bfloat16),
    (np.float64, np.int64, np.uint64, np.complex64),
    (np.int8, np.uint8, *FLOAT8, ml_dtypes.float8_e8m0fnu),
    (ml_dtypes.int2, ml_dtypes.uint2),
]


@pytest.mark.parametrize(
    "source, target",
    [pair for types in SAME_WIDTH for pair in itertools.permutations(types, 2)],
    ids=lambda t: np.dtype(t).name,
)
def test_bits_are_reinterpreted(source: Any, target: Any) -> None:
    ones = [-1, 0, 1, -2] if "uint" not in np.dtype(source).name else [0, 1, 2, 3]
    x = np.array(ones).astype(source).reshape(2, 2)
    attributes = {"to": helper.np_dtype_to_tensor_dtype(np.dtype(target))}
    (y,), (want,) = run_op("BitCast", [x], attributes), reference_op("BitCast", [x], attributes)
    assert y.dtype == target
    assert y.tobytes() == want.tobytes()


def test_all_sixteen_float4s_have_their_bits() -> None:
    codes = np.arange(16).astype(ml_dtypes.uint4)
    (y,) = run_op("BitCast", [codes], {"to": TensorProto.FLOAT4E2M1})
    assert y.tobytes() == np.arange(16, dtype=np.uint8).tobytes()
    assert_array_equal(y[:8].astype(float), [0, 0.5, 1, 1.5, 2, 3, 4, 6])
    (back,) = run_op("BitCast", [y], {"to": TensorProto.UINT4})
    assert_array_equal(back.astype(int), np.arange(16))
    (signed,) = run_op("BitCast", [y], {"to": TensorProto.INT4})
    assert_array_equal(signed.astype(int), [*range(8), *range(-8, 0)])
