"""Flat buffers: views that share memory, in order."""

from __future__ import annotations

import numpy as np

from onward.training.api.flat import Flat, Tensors


def test_views_lie_back_to_back() -> None:
    flat = Flat({"a": (2, 2), "n": (0, 3), "s": (), "b": (3,)}, np.float32)
    flat["s"][...] = 7
    assert flat.buffer.tolist() == [0, 0, 0, 0, 7, 0, 0, 0]
    assert flat.names() == ["a", "n", "s", "b"] and "b" in flat and "c" not in flat
    assert flat["a"].ctypes.data == flat.buffer.ctypes.data


def test_each_type_has_its_buffer() -> None:
    kinds = {"a": ("float32", (2,)), "i": ("int64", (1,)), "b": ("float32", (1,))}
    tensors = Tensors(kinds)
    assert list(tensors.flats) == ["float32", "int64"] and tensors.one_buffer() is None
    assert tensors.flats["float32"].names() == ["a", "b"]
    assert tensors.names() == ["a", "i", "b"] and "i" in tensors
    single = Tensors({"a": ("float32", (2,))})
    assert single.one_buffer() is single.flats["float32"].buffer
