"""onnxruntime's operators over quantized weights, against onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.providers.torch.one_node import Array, run_op
from tests.providers.torch.ort_node import agrees_with_ort

MICROSOFT = "com.microsoft"
RANDOM = np.random.default_rng(19)


def numbers(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def ubytes(*shape: int) -> Array:
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def sbytes(*shape: int) -> Array:
    return RANDOM.integers(-128, 128, shape).astype(np.int8)


def weights(*shape: int) -> Array:
    """Weights of products, within 64: without VNNI onnxruntime cuts off sums of larger ones."""
    return sbytes(*shape) // 2


def number(value: float) -> Array:
    return np.array(value, np.float32)


def agrees(op: str, inputs: list[Array | None], outputs: int = 1, **options: Any) -> None:
    fixed, atol = options.pop("constants", ()), options.pop("atol", 1e-4)
    agrees_with_ort(
        op, inputs, options, outputs, domain=MICROSOFT, constants=fixed, rtol=1e-3, atol=atol
    )


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("k", [64, 72])
def test_weights_of_few_bits_are_multiplied_by(bits: int, block: int, k: int) -> None:
    n, blocks = 5, -(-k // block)
    weights = [ubytes(n, blocks, block * bits // 8), numbers(n, blocks) / 10]
    zeros = ubytes(n, -(-blocks * bits // 8))
    size = {"K": k, "N": n, "bits": bits, "block_size": block, "atol": 1e-3}
    agrees("MatMulNBits", [numbers(2, 3, k), *weights], constants=(1, 2), **size)
    agrees("MatMulNBits", [numbers(3, k), *weights, zeros], constants=(1, 2, 3), **size)
    flat = [weights[0], weights[1].reshape(-1), zeros.reshape(-1)]
    agrees("MatMulNBits", [numbers(3, k), *flat], constants=(1, 2, 3), **size)
    biased = [numbers(3, k), *weights, None, None, numbers(n)]
    agrees("MatMulNBits", biased, constants=(1, 2, 5), **size)
    if bits < 8:
        real = [numbers(3, k), *weights, numbers(n, blocks)]
        agrees("MatMulNBits", real, constants=(1, 2, 3), **size)
    if bits == 4:  # onnxruntime supports groups only for four bits
        groups = RANDOM.integers(0, blocks, blocks * block).astype(np.int32)
        grouped = [numbers(3, k), *weights, None, groups]
        agrees("MatMulNBits", grouped, constants=(1, 2, 4), **size)


def test_half_precision_weights_of_few_bits() -> None:
    a, scales, b = numbers(3, 32), numbers(5, 1), ubytes(5, 1, 16)
    attributes = {"K": 32, "N": 5, "bits": 4, "block_size": 32}
    halves = [a.astype(np.float16), b, scales.astype(np.float16)]
    (y,) = run_op("MatMulNBits", halves, attributes, domain=MICROSOFT)
    (wanted,) = run_op("MatMulNBits", [a, b, scales], attributes, domain=MICROSOFT)
    assert y.dtype == np.float16
    assert_allclose(y, wanted, rtol=1e-2, atol=0.2)


INDICES = [np.array([[0, 3], [6, -1]]), np.array([2, 5, 5], np.int32), np.array(4)]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("indices", INDICES, ids=["a matrix", "a vector", "a number"])
def test_rows_of_packed_bytes_are_gathered(bits: int, indices: Array) -> None:
    rows, columns, block = 7, 48, 16
    data, scales = ubytes(rows, columns * bits // 8), numbers(rows, columns // block)
    zeros = ubytes(rows, -(-(columns // block) * bits // 8))
    options = {"bits": bits, "block_size": block, "quantize_axis": 1, "gather_axis": 0}
    agrees("GatherBlockQuantized", [data, indices, scales], constants=(0, 2), **options)
    inputs = [data, indices, scales, zeros]
    agrees("GatherBlockQuantized", inputs, constants=(0, 2, 3), **options)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("axis", [0, 1])
def test_rows_or_columns_of_four_bit_integers_are_gathered(dtype: Any, axis: int) -> None:
    limits = ml_dtypes.iinfo(dtype)
    data = RANDOM.integers(limits.min, limits.max + 1, (7, 48)).astype(dtype)
    zeros = RANDOM.integers(limits.min, limits.max + 1, (7, 3)).astype(dtype)
    options = {"block_size": 16, "quantize_axis": 1, "gather_axis": axis}
    inputs = [data, np.array([0, 3]), numbers(7, 3)]
    agrees("GatherBlockQuantized", inputs, constants=(0, 2), **options)
    agrees("GatherBlockQuantized", [*inputs, zeros], constants=(0, 2, 3), **options)


def test_attention_projects_bytes() -> None:
    x, w, bias = ubytes(2, 4, 8), weights(8, 24), numbers(24)
    zeros = [np.array(100, np.uint8), np.array(0, np.int8)]
    one = [number(0.02), number(0.01), None, *zeros]
    agrees("QAttention", [x, w, bias, *one], num_heads=2)
    ends = np.array([2, 4], np.int32)
    columns = [number(0.02), np.full(24, 0.01, np.float32), ends, zeros[0], sbytes(24)]
    agrees("QAttention", [x, w, bias, *columns], num_heads=2)
    past = numbers(2, 2, 2, 3, 4)
    agrees("QAttention", [x, w, bias, *one, past], 2, num_heads=2, unidirectional=1)


@pytest.mark.parametrize("mask", [None, np.array([[1, 1, 0], [1, 1, 1]], np.int32)])
def test_embeddings_may_be_bytes(mask: Array | None) -> None:
    ids = np.array([[1, 2, 3], [4, 0, 2]], np.int32)
    segments = np.array([[0, 0, 1], [1, 0, 0]], np.int32)
    tables = [ubytes(6, 8), ubytes(5, 8), ubytes(2, 8), ubytes(8), ubytes(8)]
    scales = [number(value) for value in (0.01, 0.02, 0.03, 0.01, 0.02)]
    zeros = [np.array(value, np.uint8) for value in (1, 100, 128, 50, 3)]
    inputs = [ids, segments, *tables, mask, *scales, *zeros]
    fixed = (*range(2, 7), *range(8, 18))
    agrees("QEmbedLayerNormalization", inputs, 2, constants=fixed)


@pytest.mark.parametrize("direction, n", [("forward", 1), ("bidirectional", 2)])
@pytest.mark.parametrize("columns", [False, True])
def test_an_lstm_has_weights_of_bytes(direction: str, n: int, columns: bool) -> None:
    hidden, shape = 5, (n, 20) if columns else (n,)
    scales = [(0.002 + RANDOM.random(shape) / 200).astype(np.float32) for _ in range(2)]
    zeros = np.zeros(shape, np.int8)
    inputs = [
        numbers(4, 2, 3),
        weights(n, 3, 4 * hidden),
        weights(n, hidden, 4 * hidden),
        numbers(n, 8 * hidden),
        *[None] * 4,
        *[scales[0], zeros, scales[1], zeros],
    ]
    # onnxruntime rounds the inputs to bytes as well
    options = {"hidden_size": hidden, "direction": direction, "atol": 2e-2}
    agrees("DynamicQuantizeLSTM", inputs, 3, constants=(1, 2, *range(8, 12)), **options)
