"""Messages: every kind of feed and result passes, malformed messages are refused."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onward.workers import messages

TYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
TYPES += ["float16", "float32", "float64", "complex64", "complex128"]
MORE = ["bfloat16", "int4", "uint4", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]


def sent(value: Any) -> Any:
    """A value as the other process receives it."""
    buffers: list[Any] = []
    packed = messages.pack(value, buffers)
    file = io.BytesIO()
    messages.send(file, {"value": packed}, buffers)
    file.seek(0)
    header, data = messages.receive(file)
    return messages.unpack(header["value"], data)


@pytest.mark.parametrize("name", [*TYPES, *MORE])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_every_type_and_shape_passes(name: str, shape: tuple[int, ...]) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    got = sent(array)
    assert got.dtype == dtype and got.shape == shape
    assert got.tobytes() == array.tobytes()


def test_a_tensor_of_the_other_byte_order_keeps_its_values() -> None:
    array = np.arange(3, dtype=np.dtype(np.float32).newbyteorder("S"))
    assert sent(array).tolist() == [0.0, 1.0, 2.0]


def test_a_tensor_that_is_not_contiguous_passes() -> None:
    array = np.arange(100_000, dtype=np.int64).reshape(250, 400).T[::3]
    np.testing.assert_array_equal(sent(array), array)


def test_text_passes() -> None:
    text = np.array([["a", "ä"], ["", "\udcff\n"]], object)
    assert sent(text).tolist() == text.tolist()
    assert sent(np.array(["ab", "c"])).tolist() == ["ab", "c"]
    assert sent(np.array([b"ab"])).tolist() == ["ab"]
    assert sent(np.array(["a", None], object)[:1]).tolist() == ["a"]


def test_sequences_optionals_maps_and_numbers_pass() -> None:
    first, second = sent([np.ones(2), np.zeros((1, 2), np.int8)])
    assert first.tolist() == [1, 1] and second.shape == (1, 2)
    assert sent(None) is None
    assert sent([[np.ones(1)], []])[1] == []
    assert sent([{"a": 0.5, "b": float("inf")}, {1: 2}]) == [{"a": 0.5, "b": np.inf}, {1: 2}]
    assert sent([[1.5, 2], [3, 4]]) == [[1.5, 2], [3, 4]]
    assert sent(3.5) == 3.5 and sent(np.float32(2)).dtype == np.float32


def test_values_without_a_tensor_type_are_refused() -> None:
    with pytest.raises(TypeError, match="a feed must be a tensor or numbers, not object"):
        messages.pack(object(), [])
    with pytest.raises(TypeError, match="no ONNX tensor type for datetime64"):
        messages.pack(np.array(["2026-11-15"], "datetime64[D]"), [])


@pytest.mark.parametrize(
    "packed",
    [
        {"kind": "tensor", "dtype": "float32", "shape": [3]},  # of 8 bytes
        {"kind": "tensor", "dtype": "float32", "shape": [-2]},
        {"kind": "tensor", "dtype": "float32", "shape": [2.0]},
        {"kind": "tensor", "dtype": "bool", "shape": [8]},  # neither 0 nor 1
        {"kind": "tensor", "dtype": "float32", "shape": [1] * 64 + [2]},
        {"kind": "text", "shape": [1]},
        {"kind": "something", "shape": []},
    ],
)
def test_a_tensor_that_does_not_fit_its_bytes_is_refused(packed: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        messages.unpack(packed, iter([np.full(8, 7, np.uint8)]))


def test_nesting_depth_is_limited() -> None:
    packed: dict[str, Any] = {"kind": "none"}
    for _ in range(20):
        packed = {"kind": "list", "items": [packed]}
    with pytest.raises((ValueError, KeyError)):
        messages.unpack(packed, iter([]))


def test_received_sizes_are_limited() -> None:
    long = struct.pack("<Q", 1 << 50)
    with pytest.raises(ValueError, match=r"the header of .* bytes is longer than"):
        messages.receive(io.BytesIO(long))
    with pytest.raises(ValueError, match="the header has no list of buffer sizes"):
        messages.receive(io.BytesIO(struct.pack("<Q", 2) + b"{}"))
    header = json.dumps({"buffers": [1 << 50]}).encode()
    with pytest.raises(ValueError, match="their sum is above 1,000 bytes"):
        messages.receive(io.BytesIO(struct.pack("<Q", len(header)) + header), limit=1000)
    with pytest.raises(EOFError, match="the other process has ended"):
        messages.receive(io.BytesIO(b""))
