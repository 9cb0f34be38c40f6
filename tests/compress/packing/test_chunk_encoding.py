"""Chunks: every layout gives back the bytes that it was made from, and is small on weights."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.compress.packing.chunk_encoding import encode_tensor
from onward.graph.packed.chunks import CHUNK, ChunkError, decode_tensor

Array = np.ndarray[Any, Any]

TYPES = {
    "float32": (ir.DataType.FLOAT, np.float32),
    "bfloat16": (ir.DataType.BFLOAT16, ml_dtypes.bfloat16),
    "float16": (ir.DataType.FLOAT16, np.float16),
    "float64": (ir.DataType.DOUBLE, np.float64),
    "int8": (ir.DataType.INT8, np.int8),
    "uint8": (ir.DataType.UINT8, np.uint8),
    "int64": (ir.DataType.INT64, np.int64),
    "int4": (ir.DataType.INT4, np.uint8),  # two elements in a byte
}


def weights(count: int, seed: int = 0) -> Array:
    """Numbers as a trained layer has them."""
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32) * 0.05


def in_type(array: Array, name: str) -> Array:
    kind = np.dtype(TYPES[name][1])
    if kind.kind in "iu":
        array = np.round(array / np.abs(array).max(initial=1e-9) * 127).astype(np.int64)
    return np.ascontiguousarray(array.astype(kind)).reshape(-1).view(np.uint8)


def packed(data: Array, dtype: ir.DataType) -> bytes:
    stored = b"".join(encode_tensor(data, dtype))
    assert np.array_equal(decode_tensor(memoryview(stored), len(data)), data)
    return stored


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("count", [0, 1, 3, 5000, 40_001, CHUNK + 7])
def test_every_type_and_length_comes_back_bit_for_bit(name: str, count: int) -> None:
    packed(in_type(weights(count), name), TYPES[name][0])


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "int64"])
def test_random_bits_come_back_and_grow_little(name: str) -> None:
    data = np.random.default_rng(1).integers(0, 256, 80_000, np.uint8)
    assert len(packed(data, TYPES[name][0])) <= len(data) * 1.01 + 64


@pytest.mark.parametrize(
    ("name", "most"), [("float32", 0.85), ("bfloat16", 0.69), ("float16", 0.86), ("int8", 0.95)]
)
def test_weights_become_smaller(name: str, most: float) -> None:
    data = in_type(weights(400_000), name)
    assert len(packed(data, TYPES[name][0])) <= most * len(data)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(50_000, np.float32),
        np.where(weights(50_000) > 0, weights(50_000), 0),  # half of it pruned
        weights(50_000).astype(ml_dtypes.bfloat16).astype(np.float32),  # 16 bits in 32
        np.exp(weights(50_000) * 200),  # exponents that vary widely
        np.array([np.nan, np.inf, -np.inf, -0.0, 1e-42] * 10_000, np.float32),
    ],
    ids=["zeros", "pruned", "narrow", "wide", "special"],
)
def test_unusual_float32_tensors_come_back_and_shrink(array: Array) -> None:
    data = array.view(np.uint8)
    assert len(packed(data, ir.DataType.FLOAT)) < 0.92 * len(data)


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=0, max_size=300), st.sampled_from(sorted(TYPES)), st.integers(1, 200))
def test_any_bytes_come_back(piece: bytes, name: str, times: int) -> None:
    dtype, kind = TYPES[name]
    data = np.frombuffer(piece * times, np.uint8)
    width = np.dtype(kind).itemsize
    packed(data[: len(data) // width * width], dtype)


def test_damaged_chunks_are_refused() -> None:
    data = in_type(weights(20_000), "bfloat16")
    stored = packed(data, ir.DataType.BFLOAT16)
    for wrong in (stored[:-1], stored[:3], b"\xff" + stored[1:], stored + stored):
        with pytest.raises(ChunkError):
            decode_tensor(memoryview(wrong), len(data))
