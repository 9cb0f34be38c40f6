"""Messages between a process and its workers: a JSON header, then raw buffers.

Neither side unpickles anything. The parent does not trust the child: it limits what it reads, and
builds tensors of known types only, whose shapes match the bytes received.

    length of header (8 bytes) | header | buffer | buffer | ...      header["buffers"]: their sizes
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from onward.graph.dtypes import ELEMENT_TYPES
from onward.providers.ort.ort_values import to_numpy, to_ort

Array = np.ndarray[Any, Any]
Buffer = bytes | memoryview | Array

_LENGTH = struct.Struct("<Q")
_MAX_HEADER = 64 << 20
_MAX_JOINED = 64 << 10  # bytes that are cheaper to copy than to write one by one
_MAX_DEPTH = 8  # sequences of sequences of ...
_MAX_RANK = 64  # numpy's own limit

_DTYPES = {each.numpy: each.dtype for each in ELEMENT_TYPES if each.onnx != "STRING"}


# -- tensors -----------------------------------------------------------------------------------


def pack(value: Any, buffers: list[Buffer]) -> dict[str, Any]:
    """A tensor, a sequence, None or plain numbers as JSON; the data goes to `buffers`."""
    if value is None:
        return {"kind": "none"}
    if isinstance(value, dict):
        return {"kind": "map", "pairs": [[_plain(k), _plain(v)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, (list, tuple, dict)) or _is_tensor(item) for item in value):
            return {"kind": "list", "items": [pack(item, buffers) for item in value]}
        return {"kind": "plain", "value": [_plain(item) for item in value]}
    if not _is_tensor(value):
        return {"kind": "plain", "value": _plain(value)}
    return _pack_array(_array(value), buffers)


def _pack_array(array: Array, buffers: list[Buffer]) -> dict[str, Any]:
    shape = list(array.shape)
    if array.dtype.kind in "OUS":
        buffers.append(json.dumps([_text(item) for item in array.reshape(-1).tolist()]).encode())
        return {"kind": "text", "shape": shape}
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    name = _name_of(array.dtype)
    if name not in _DTYPES:
        raise TypeError(f"no ONNX tensor type for {array.dtype}")
    buffers.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return {"kind": "tensor", "dtype": name, "shape": shape}


@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name  # numpy puts it together each time


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "data_ptr")


def _array(value: Any) -> Array:
    """Any engine's tensor as a numpy array."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    array: Array = np.asarray(to_numpy(to_ort(value)))
    return array


def _text(item: Any) -> str:
    return item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else str(item)


def _plain(item: Any) -> Any:
    if isinstance(item, np.generic):
        item = item.item()
    if item is None or isinstance(item, (bool, int, float, str)):
        return item
    raise TypeError(f"a feed must be a tensor or numbers, not {type(item).__name__}")


def unpack(packed: Any, buffers: Iterator[Array], depth: int = 0) -> Any:
    """The value that `pack` was given; malformed input is a ValueError."""
    kind = packed["kind"]
    if kind == "none":
        return None
    if kind == "plain":
        return packed["value"]
    if kind == "map":
        return {_plain(key): _plain(value) for key, value in packed["pairs"]}
    if kind == "list" and depth < _MAX_DEPTH:
        return [unpack(item, buffers, depth + 1) for item in packed["items"]]
    shape = packed["shape"]
    if not all(type(size) is int and size >= 0 for size in shape) or len(shape) > _MAX_RANK:
        raise ValueError(f"not a shape: {shape}")
    data = next(buffers)
    if kind == "tensor":
        dtype = _DTYPES[packed["dtype"]]
        if data.nbytes != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{data.nbytes} bytes are not {dtype} {shape}")
        if dtype == np.bool_ and data.size and data.max() > 1:
            raise ValueError("a byte of a bool tensor is neither 0 nor 1")
        return data.view(dtype).reshape(shape)
    if kind == "text":
        items = json.loads(data.tobytes())
        if len(items) != math.prod(shape) or not all(isinstance(item, str) for item in items):
            raise ValueError(f"{len(items)} texts are not {shape}")
        text = np.empty(len(items), object)
        text[:] = items
        return text.reshape(shape)
    raise ValueError(f"unknown kind of value: {kind!r}")


# -- messages ----------------------------------------------------------------------------------


def send(file: Any, header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
    """Write one message to an unbuffered file."""
    views = [_view(buffer) for buffer in buffers if len(buffer)]
    text = json.dumps({**header, "buffers": [len(buffer) for buffer in buffers]}).encode()
    start = _LENGTH.pack(len(text)) + text
    if sum(map(len, views)) <= _MAX_JOINED:
        views, start = [], b"".join([start, *views])
    for view in (memoryview(start), *views):
        while len(view):
            view = view[file.write(view) :]


def receive(file: Any, limit: float = math.inf) -> tuple[dict[str, Any], Iterator[Array]]:
    """Read one message. EOFError: the pipe is closed. ValueError: it is malformed or too large."""
    (length,) = _LENGTH.unpack(_read(file, _LENGTH.size).tobytes())
    if length > _MAX_HEADER:
        raise ValueError(f"the header of {length:,} bytes is longer than {_MAX_HEADER:,}")
    header = json.loads(_read(file, length).tobytes())
    sizes = header.get("buffers") if isinstance(header, dict) else None
    if not isinstance(sizes, list):
        raise ValueError("the header has no list of buffer sizes")
    if not all(type(size) is int and size >= 0 for size in sizes) or sum(sizes) > limit:
        raise ValueError(f"the buffer sizes are not valid, or their sum is above {limit:,} bytes")
    return header, iter([_read(file, size) for size in sizes])


def _view(buffer: Any) -> memoryview:
    return memoryview(buffer).cast("B")


def _read(file: Any, size: int) -> Array:
    data = np.empty(size, np.uint8)
    view = _view(data)
    while len(view):
        got = file.readinto(view)
        if not got:
            raise EOFError("the other process has ended")
        view = view[got:]
    return data
