"""Quantization, and products and convolutions of quantized tensors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, helper

from tests.providers.torch.one_node import run_op
from tests.providers.torch.reference import reference_op

Array = np.ndarray[Any, Any]
INTEGERS: list[Any] = [
    np.uint8, np.int8, np.uint16, np.int16,
    ml_dtypes.uint4, ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.int2,
]  # fmt: skip
FLOATS: list[Any] = [
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e5m2fnuz, ml_dtypes.float4_e2m1fn,
]  # fmt: skip
if hasattr(ir.DataType, "FLOAT6E2M3"):  # onnx-ir 1.0 does not know them yet
    FLOATS += [ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn]
# scale and zero point per tensor, per slice of an axis, per block of an axis (the last one short)
GRANULARITIES: list[tuple[tuple[int, ...], dict[str, int]]] = [
    ((), {}),
    ((1,), {}),
    ((6,), {"axis": 1}),
    ((6,), {"axis": -2}),
    ((2, 6, 3), {"axis": 2, "block_size": 3}),
    ((2, 2, 7), {"axis": -2, "block_size": 4}),
]


def _number(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _same(y: Array, want: Array) -> None:
    assert y.dtype == want.dtype
    assert_array_equal(y.astype(np.float64), want.astype(np.float64))


@pytest.mark.sampled("dtype")
@pytest.mark.sampled("shape", "attributes")
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("shape, attributes", GRANULARITIES)
def test_quantization_in_every_granularity(
    shape: tuple[int, ...], attributes: dict[str, int], dtype: Any
) -> None:
    random = np.random.default_rng(0)
    x = random.normal(0, 40, (2, 6, 7)).astype(np.float32)
    scale = random.choice([0.25, 0.5, 2.0], shape).astype(np.float32)
    zero_point = random.integers(0, 2, shape).astype(dtype)
    if dtype in FLOATS:
        zero_point = np.zeros(shape, dtype)
    inputs = [x, scale, zero_point]
    _same(
        run_op("QuantizeLinear", inputs, attributes)[0],
        reference_op("QuantizeLinear", inputs, attributes)[0],
    )


@pytest.mark.sampled("dtype")
@pytest.mark.sampled("shape", "attributes")
@pytest.mark.parametrize("dtype", [*INTEGERS, np.int32, *FLOATS], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("shape, attributes", GRANULARITIES)
def test_dequantization_in_every_granularity(
    shape: tuple[int, ...], attributes: dict[str, int], dtype: Any
) -> None:
    random = np.random.default_rng(0)
    x = random.integers(-2, 4, (2, 6, 7)).astype(dtype)
    scale = random.choice([0.3, 0.5, 2.0], shape).astype(np.float32)
    zero_point = None if dtype in FLOATS else random.integers(0, 2, shape).astype(dtype)
    inputs = [x, scale, zero_point]
    _same(
        run_op("DequantizeLinear", inputs, attributes)[0],
        reference_op("DequantizeLinear", inputs, attributes)[0],
    )


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=lambda t: np.dtype(t).name)
def test_the_output_type_may_be_an_attribute(dtype: Any) -> None:
    x, scale = np.linspace(-300, 300, 20, dtype=np.float32), np.array(1, np.float32)
    attributes = {"output_dtype": _number(dtype)}
    (y,) = run_op("QuantizeLinear", [x, scale], attributes)
    assert y.dtype == dtype
    _same(y, reference_op("QuantizeLinear", [x, scale], attributes)[0])


def test_without_any_type_the_output_is_uint8() -> None:
    x, scale = np.array([-1, 0.5, 1.5, 2.5, 1000], np.float32), np.array(1, np.float32)
    (y,) = run_op("QuantizeLinear", [x, scale])
    assert y.dtype == np.uint8
    assert y.tolist() == [0, 0, 2, 2, 255]  # halves to even, and both ends


@pytest.mark.parametrize("type_", [np.float16, ml_dtypes.bfloat16, np.float32, np.int32])
def test_quantization_of_every_input_type(type_: Any) -> None:
    x = np.array([-200, -3, 0, 5, 200]).astype(type_)
    for scale_type in (np.float32, np.float16, ml_dtypes.bfloat16):
        scale = np.array(2).astype(scale_type)
        (y,) = run_op("QuantizeLinear", [x, scale, np.array(3, np.int8)])
        assert y.tolist() == [-97, 1, 3, 5, 103]


def test_sixteen_bits_are_reached_from_float16() -> None:
    x, scale = np.array([60000, -60000, 3], np.float16), np.array(0.5, np.float16)
    (y,) = run_op("QuantizeLinear", [x, scale, np.array(1000, np.uint16)])
    assert y.tolist() == [65535, 0, 1006]


def test_precision_is_the_type_of_the_division() -> None:
    x, scale = np.array([1.0, 2.0, 1001.0], np.float32), np.array(3.0, np.float16)
    for precision in (np.float32, np.float16):
        attributes = {"precision": _number(precision)}
        (y,) = run_op("QuantizeLinear", [x, scale, np.array(0, np.int16)], attributes)
        want = np.rint((x.astype(precision) / scale.astype(precision)).astype(np.float32))
        assert y.tolist() == want.tolist()


def test_scales_may_be_exponents() -> None:
    scale = np.array(0.25).astype(ml_dtypes.float8_e8m0fnu)
    x = np.array([0.5, 1, -1.5], np.float32)
    (y,) = run_op("QuantizeLinear", [x, scale], {"output_dtype": TensorProto.FLOAT4E2M1})
    assert y.astype(float).tolist() == [2, 4, -6]
    (back,) = run_op("DequantizeLinear", [y, scale], {"output_dtype": TensorProto.FLOAT})
    assert_array_equal(back, x)


@pytest.mark.parametrize("saturate", [0, 1])
def test_float8_may_overflow_or_saturate(saturate: int) -> None:
    x, scale = np.array([1e6, -1e6, 8.0], np.float32), np.array(1, np.float32)
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        attributes = {"output_dtype": _number(dtype), "saturate": saturate}
        (y,) = run_op("QuantizeLinear", [x, scale], attributes)
        _same(y, reference_op("QuantizeLinear", [x, scale], attributes)[0])


@pytest.mark.parametrize("type_", [np.float16, ml_dtypes.bfloat16])
def test_dequantization_may_choose_its_output_type(type_: Any) -> None:
    x, scale = np.array([1000, -7, 0], np.int16), np.array(0.1, np.float32)
    attributes = {"output_dtype": _number(type_)}
    inputs = [x, scale, np.array(3, np.int16)]
    (y,) = run_op("DequantizeLinear", inputs, attributes)
    _same(y, reference_op("DequantizeLinear", inputs, attributes)[0])
    (y,) = run_op("DequantizeLinear", [x.astype(np.int8), scale.astype(type_)])
    assert y.dtype == type_


def test_scalars_and_empty_tensors_are_quantized() -> None:
    scale = np.array([0.5], np.float32)
    (y,) = run_op("QuantizeLinear", [np.array(3.0, np.float32), scale])
    assert y.shape == ()
    assert y == 6
    assert run_op("QuantizeLinear", [np.zeros((0, 3), np.float32), scale])[0].shape == (0, 3)
    assert run_op("DequantizeLinear", [y, scale])[0].shape == ()


def test_dynamic_quantization_computes_its_scale() -> None:
    for x in ([0, 2, -3, -2.5, 1.34, 0.5], [1, 2.1, 1.3], [-1, -2.1, -1.3], [[0, 0], [0, 0]]):
        array = np.array(x, np.float32)
        y, scale, zero_point = run_op("DynamicQuantizeLinear", [array], outputs=3)
        assert (y.dtype, scale.dtype, zero_point.dtype) == (np.uint8, np.float32, np.uint8)
        assert scale.shape == zero_point.shape == ()
        assert_allclose((y.astype(float) - zero_point) * scale, array, atol=scale / 2 + 1e-6)


@pytest.mark.parametrize("depth", [3, 256, 257, 2000])
@pytest.mark.parametrize(
    "left, right", [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)]
)
def test_products_of_bytes_are_exact_at_any_depth(depth: int, left: Any, right: Any) -> None:
    a = np.full((2, depth), np.iinfo(left).max, left)
    b = np.full((depth, 2), np.iinfo(right).max, right)
    a[1], b[:, 1] = np.iinfo(left).min, np.iinfo(right).min
    (y,) = run_op("MatMulInteger", [a, b])
    assert y.dtype == np.int32
    assert_array_equal(y, a.astype(np.int64) @ b.astype(np.int64))


def test_zero_points_are_per_row_on_the_left_and_per_column_on_the_right() -> None:
    random = np.random.default_rng(0)
    a, b = random.integers(0, 255, (5, 2, 3)).astype(np.uint8), np.ones((3, 4), np.int8)
    rows, columns = np.array([[[7], [9]]] * 5, np.uint8), np.array([1, 2, 3, 4], np.int8)
    (y,) = run_op("MatMulInteger", [a, b, rows, columns])
    want = (a.astype(int) - rows) @ (b.astype(int) - columns)
    assert_array_equal(y, want)
    (y,) = run_op("MatMulInteger", [a[0], b, rows[0, :, 0], columns])
    assert_array_equal(y, want[0])


@pytest.mark.parametrize(
    "left, right, out",
    [
        (np.uint8, np.uint8, np.uint8),
        (np.int8, np.int8, np.int8),
        (np.uint8, np.int8, np.uint8),
    ],
)
def test_quantized_products_agree_with_real_ones(left: Any, right: Any, out: Any) -> None:
    random = np.random.default_rng(0)
    a = random.integers(np.iinfo(left).min, np.iinfo(left).max, (2, 3, 8)).astype(left)
    b = random.integers(np.iinfo(right).min, np.iinfo(right).max, (8, 4)).astype(right)
    a_scale, y_scale = np.array(0.01, np.float32), np.array(0.5, np.float32)
    b_scale = np.array([0.01, 0.02, 0.03, 0.04], np.float32)
    zero, b_zero = np.array(5, left), np.array([1, 2, 3, 4], right)
    inputs = [a, a_scale, zero, b, b_scale, b_zero, y_scale, np.array(7, out)]
    (y,) = run_op("QLinearMatMul", inputs)
    real = ((a.astype(float) - 5) * a_scale) @ ((b.astype(float) - b_zero) * b_scale)
    info = np.iinfo(out)
    assert y.dtype == out
    assert_array_equal(y, np.clip(np.rint(real / 0.5) + 7, info.min, info.max).astype(out))


def test_quantized_products_of_float8() -> None:
    type_ = ml_dtypes.float8_e4m3fn
    a, b = np.array([[1, 2], [3, 4]]).astype(type_), np.array([[1, 0], [2, 1]]).astype(type_)
    one, zero = np.array(1, np.float32), np.array(0).astype(type_)
    (y,) = run_op("QLinearMatMul", [a, one, zero, b, one, zero, one, zero])
    assert y.dtype == type_
    assert y.astype(float).tolist() == [[5, 2], [11, 4]]


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 1, 1, 1]},
        {"pads": [0, 1, 2, 1], "strides": [2, 1]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "kernel_shape": [3, 3]},
        {"dilations": [2, 1]},
        {"group": 2},
    ],
)
def test_integer_convolutions_pad_with_the_zero_point(attributes: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 255, (1, 4, 7, 7)).astype(np.uint8)
    w = random.integers(-128, 127, (6, 4 // attributes.get("group", 1), 3, 3)).astype(np.int8)
    zeros = [np.array(130, np.uint8), np.arange(6, dtype=np.int8)]
    (y,) = run_op("ConvInteger", [x, w, *zeros], attributes)
    real = [x.astype(np.float64) - 130, w.astype(np.float64) - np.arange(6).reshape(-1, 1, 1, 1)]
    assert y.dtype == np.int32
    assert_array_equal(y, reference_op("Conv", real, attributes)[0])
    assert_array_equal(
        run_op("ConvInteger", [x, w], attributes)[0],
        reference_op("Conv", [x.astype(np.float64), w.astype(np.float64)], attributes)[0],
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("per_channel", [False, True])
def test_quantized_convolutions_agree_with_real_ones(rank: int, per_channel: bool) -> None:
    random = np.random.default_rng(rank)
    x = random.integers(0, 255, (2, 3, *[5] * rank)).astype(np.uint8)
    w = random.integers(-128, 127, (4, 3, *[3] * rank)).astype(np.int8)
    w_scale = np.array([0.01, 0.02, 0.03, 0.04] if per_channel else 0.01, np.float32)
    w_zero = np.array([1, 2, 3, 4] if per_channel else 1, np.int8)
    x_scale, y_scale = np.array(0.02, np.float32), np.array(1.5, np.float32)
    bias = np.array([1000, -1000, 0, 77], np.int32)
    inputs = [
        x,
        x_scale,
        np.array(9, np.uint8),
        w,
        w_scale,
        w_zero,
        y_scale,
        np.array(100, np.uint8),
        bias,
    ]
    (y,) = run_op("QLinearConv", inputs, {"pads": [1] * 2 * rank})
    column = (-1, *[1] * (rank + 1))
    real = [x.astype(float) - 9, w.astype(float) - w_zero.reshape(column if per_channel else ())]
    (z,) = reference_op("Conv", [*real, bias.astype(float)], {"pads": [1] * 2 * rank})
    scale = 0.02 * w_scale.astype(float).reshape(column[:-1] if per_channel else ()) / 1.5
    assert y.dtype == np.uint8
    assert_array_equal(y, np.clip(np.rint(z * scale) + 100, 0, 255).astype(np.uint8))
