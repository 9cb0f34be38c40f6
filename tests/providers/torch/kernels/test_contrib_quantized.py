"""onnxruntime's quantized operators, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.providers.torch.one_node import Array, run_op
from tests.providers.torch.ort_node import agrees_with_ort

MICROSOFT = "com.microsoft"
RANDOM = np.random.default_rng(17)


def numbers(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def scales(*shape: int) -> Array:
    return (0.01 + RANDOM.random(shape) / 20).astype(np.float32)


def agrees(op: str, inputs: list[Array | None], outputs: int = 1, **options: Any) -> None:
    fixed, atol = options.pop("constants", ()), options.pop("atol", 1e-5)
    agrees_with_ort(op, inputs, options, outputs, domain=MICROSOFT, constants=fixed, atol=atol)


class Bytes:
    """Random tensors of one type of byte, and three zero points with their scales."""

    def __init__(self, dtype: Any, zeros: tuple[int, int, int]) -> None:
        self.dtype, limits = dtype, np.iinfo(dtype)
        self._range = limits.min, limits.max + 1
        zero_points = [np.array(zero, dtype) for zero in zeros]
        steps = [np.array(scale, np.float32) for scale in (0.021, 0.032, 0.053)]
        self.x, self.y, self.z = ([scale, zero] for scale, zero in zip(steps, zero_points))
        # from 0 to 1, as a sigmoid and a softmax go
        self.unit = [np.array(1 / 256, np.float32), np.array(limits.min, dtype)]

    def __call__(self, *shape: int) -> Array:
        return RANDOM.integers(*self._range, shape).astype(self.dtype)


def weights(q: Bytes, *shape: int) -> Array:
    """Weights of products: signed ones within 64.

    Without VNNI onnxruntime cuts off sums of larger ones on x86-64.
    """
    drawn = q(*shape)
    return drawn // 2 if drawn.dtype == np.int8 else drawn


BYTES = [Bytes(np.uint8, (128, 120, 100)), Bytes(np.int8, (3, -5, 7))]
KINDS = pytest.mark.parametrize("q", BYTES, ids=["uint8", "int8"])


@KINDS
def test_sums_and_products_broadcast(q: Bytes) -> None:
    agrees("QLinearAdd", [q(2, 3, 4), *q.x, q(3, 1), *q.y, *q.z])
    agrees("QLinearMul", [q(2, 3, 4), *q.x, q(4), *q.y, *q.z])


@KINDS
def test_functions_of_one_tensor_agree(q: Bytes) -> None:
    fixed = (1, 2, 3, 4)
    agrees("QLinearSigmoid", [q(2, 50), *q.x, *q.unit], constants=fixed)
    agrees("QLinearLeakyRelu", [q(2, 50), *q.x, *q.y], constants=fixed, alpha=0.2)
    for axis, opset in ((-1, 13), (1, 13), (1, 12)):
        inputs = [q(2, 5, 6), *q.x, *q.unit]
        agrees("QLinearSoftmax", inputs, constants=fixed, axis=axis, opset=opset)


@KINDS
def test_where_and_concat_change_the_scale(q: Bytes) -> None:
    condition = RANDOM.random((2, 3)) > 0.5
    inputs = [condition, q(2, 3), *q.x, q(3), *q.y, *q.z]
    agrees("QLinearWhere", inputs, constants=(2, 3, 5, 6, 7, 8))
    inputs = [*q.z, q(2, 3), *q.x, q(2, 5), *q.y]
    agrees("QLinearConcat", inputs, constants=(0, 1, 3, 4, 6, 7), axis=1)


@KINDS
def test_means_agree_but_for_ties(q: Bytes) -> None:
    padded = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "atol": 1}
    scaled = [*q.x, *q.y]
    agrees("QLinearAveragePool", [q(1, 3, 7, 7), *scaled], **padded)
    agrees("QLinearAveragePool", [q(1, 3, 7, 7), *scaled], count_include_pad=1, **padded)
    last = {"kernel_shape": [2, 2], "channels_last": 1, "atol": 1}
    agrees("QLinearAveragePool", [q(1, 6, 6, 3), *scaled], **last)
    agrees("QLinearGlobalAveragePool", [q(2, 3, 6, 5), *scaled], atol=1)
    agrees("QLinearGlobalAveragePool", [q(2, 6, 5, 3), *scaled], channels_last=1, atol=1)


def test_a_mean_over_axes_is_that_of_the_real_numbers() -> None:
    x, one = np.array([[[2, 4], [6, 9]]], np.uint8), np.array(1, np.float32)
    zero, attributes = np.array(1, np.uint8), {"axes": [1], "keepdims": 0}
    inputs = [x, one, zero, np.array(0.5, np.float32), zero]
    (y,) = run_op("QLinearReduceMean", inputs, attributes, domain=MICROSOFT)
    assert_array_equal(y, np.array([[7, 12]], np.uint8))


def test_product_of_integers_is_an_integer() -> None:
    a, b = np.array([1, 200], np.uint8), np.array([3, 4], np.uint8)
    zero = np.array(2, np.uint8)
    (y,) = run_op("MulInteger", [a, zero, b, zero], domain=MICROSOFT)
    assert_array_equal(y, np.array([-1, 396], np.int32))


@KINDS
def test_matrix_products_agree(q: Bytes) -> None:
    bias = numbers(5)
    agrees("MatMulIntegerToFloat", [q(2, 4, 6), weights(q, 6, 5), *real_pair(q), bias])
    a, b = BYTES[0](2, 4, 6), weights(BYTES[1], 6, 5)
    columns = [np.array(0.02, np.float32), scales(5), np.array(100, np.uint8), BYTES[1](5)]
    agrees("MatMulIntegerToFloat", [a, b, *columns, bias])
    agrees("MatMulIntegerToFloat", [q(4, 300), weights(q, 300, 5), *real_pair(q)], atol=1e-3)
    agrees("DynamicQuantizeMatMul", [numbers(2, 4, 6), weights(q, 6, 5), *q.y, bias])
    agrees("DynamicQuantizeMatMul", [numbers(4, 6), weights(q, 6, 5), scales(5)])


def real_pair(q: Bytes) -> list[Array | None]:
    return [q.x[0], q.y[0], q.x[1], q.y[1]]


@KINDS
def test_gemm_gives_bytes_or_floats(q: Bytes) -> None:
    c, large = RANDOM.integers(-1000, 1000, 5).astype(np.int32), np.array(0.5, np.float32)
    inputs = [q(4, 6), *q.x, weights(q, 6, 5), *q.y, c, large, q.z[1]]
    agrees("QGemm", inputs, alpha=0.5, constants=range(1, 9))
    inputs = [q(6, 4), *q.x, weights(BYTES[1], 5, 6), scales(5), BYTES[1](5), c]
    agrees("QGemm", inputs, transA=1, transB=1, constants=range(1, 7))


@KINDS
def test_tensors_are_quantized_and_back(q: Bytes) -> None:
    agrees("QuantizeLinear", [3 * numbers(3, 4), *q.x])
    agrees("DequantizeLinear", [q(3, 4), *q.x])
    for axis, size in ((0, 3), (1, 4)):
        agrees("QuantizeLinear", [numbers(3, 4), scales(size), q(size)], axis=axis)
        agrees("DequantizeLinear", [q(3, 4), scales(size), q(size)], axis=axis)


@KINDS
def test_a_convolution_has_its_channels_last(q: Bytes) -> None:
    bias = RANDOM.integers(-1000, 1000, 4).astype(np.int32)
    weight = [weights(BYTES[1], 4, 3, 3, 3), np.array(0.03, np.float32), np.array(0, np.int8)]
    inputs = [q(1, 6, 6, 3), *q.x, *weight, np.array(2, np.float32), q.z[1], bias]
    options = {"channels_last": 1, "pads": [1, 1, 1, 1], "constants": range(1, 9)}
    agrees("QLinearConv", inputs, **options)


def test_a_result_too_large_saturates() -> None:
    x, zero = np.array([255, 0], np.uint8), np.array(128, np.uint8)
    one, small = np.array(1, np.float32), np.array(0.1, np.float32)
    (y,) = run_op("QLinearAdd", [x, one, zero, x, one, zero, small, zero], domain=MICROSOFT)
    assert_allclose(y, [255, 0])
