"""Tensors in the forms of the Open Inference Protocol: raw bytes, BYTES elements and JSON.

from_raw("FP32", (2, 2), data) -> array          to_raw(array) -> data, without a copy if it can
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from onward.errors import RequestInvalid
from onward.serving.requests import Array

DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"INT{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BYTES": np.dtype(object),
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
_JSON_KINDS: dict[str, set[type]] = {  # by numpy's kind of a type
    "i": {int},
    "u": {int},
    "b": {bool},
    "f": {int, float},
}
_LENGTH = struct.Struct("<I")
_MAX_RANK = 32
_MOST_ELEMENTS = 1 << 48  # a size of 0 does not count: numpy and engines multiply the others


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a numpy type; text and bytes are BYTES."""
    if dtype.kind in "OUS":
        return "BYTES"
    name = _NAMES.get(dtype)
    if name is None:
        raise RequestInvalid(f"the protocol has no datatype for {dtype}")
    return name


def check_shape(name: str, shape: Any) -> tuple[int, ...]:
    """A request's shape as a tuple; -1 is not a size."""
    if not isinstance(shape, (list, tuple)) or len(shape) > _MAX_RANK:
        raise RequestInvalid(f"the shape of input {name!r} is not a list of sizes")
    elements = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise RequestInvalid(f"the shape of input {name!r} has a size {size!r}: not 0 or more")
        elements *= size or 1
    if elements > _MOST_ELEMENTS:
        raise RequestInvalid(f"the shape of input {name!r} is too large: {list(shape)}")
    return tuple(shape)


def from_raw(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> Array:
    """A tensor from little-endian bytes; `data` is not copied."""
    dtype = dtype_of(name, datatype)
    if datatype == "BYTES":
        return _from_elements(name, shape, data)
    size = math.prod(shape) * dtype.itemsize
    if len(data) != size:
        raise RequestInvalid(
            f"input {name!r} got {len(data):,} bytes, expected {size:,}: {datatype} {list(shape)}"
        )
    array: Array = np.frombuffer(data, np.uint8 if datatype == "BOOL" else dtype)
    if datatype == "BOOL":
        if array.size and array.max() > 1:
            raise RequestInvalid(f"input {name!r}: a byte of a BOOL tensor is neither 0 nor 1")
        array = array.view(np.bool_)
    return array.reshape(shape)


def from_json(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> Array:
    """A tensor from JSON numbers, flat or nested as its shape; BYTES from texts."""
    dtype_of(name, datatype)  # refuses unknown ones
    if not isinstance(data, list):
        raise RequestInvalid(f"input {name!r}: data is not a list")
    flat, sizes = _flat(name, data)
    if len(flat) != math.prod(shape):
        raise RequestInvalid(
            f"input {name!r} got {len(flat):,} elements, expected {math.prod(shape):,}"
        )
    if len(sizes) > 1 and flat and not _is_nested_as(sizes, shape):
        raise RequestInvalid(
            f"input {name!r}: data is nested as {sizes}, expected its shape {list(shape)}\n"
            "nest it as the shape, or give its elements in one list, row by row"
        )
    if datatype == "BYTES":
        return _objects([_element(name, each) for each in flat], shape)
    return _numbers(name, datatype, flat).reshape(shape)


def narrow_floats(name: str, datatype: str, wide: Array) -> Array:
    """Floats in the type of an input; a finite one that would become infinite is refused."""
    dtype = DATATYPES[datatype]
    if wide.dtype == dtype:
        return wide
    with np.errstate(over="ignore"):
        array: Array = wide.astype(dtype)
    too_large = np.isinf(array) & np.isfinite(wide)
    if too_large.any():
        raise _out_of_range(name, datatype, wide[too_large][0])
    return array


def to_raw(array: Array) -> bytes | memoryview:
    """The little-endian bytes of a tensor; BYTES elements with their lengths."""
    if array.dtype.kind in "OUS":
        parts: list[bytes] = []
        for each in array.reshape(-1).tolist():
            data = each if isinstance(each, bytes) else str(each).encode()
            parts += (_LENGTH.pack(len(data)), data)
        return b"".join(parts)
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data


def to_json(array: Array) -> list[Any]:
    """The elements of a tensor as JSON, flat; bytes that are not UTF-8 as base64."""
    flat = array.reshape(-1)
    if array.dtype.kind in "OUS":
        return [_text(each) for each in flat.tolist()]
    if array.dtype in (DATATYPES["BF16"], DATATYPES["FP16"]):
        flat = flat.astype(np.float32)
    found: list[Any] = flat.tolist()
    return found


def dtype_of(name: str, datatype: Any) -> np.dtype[Any]:
    """The numpy type of a datatype of the protocol."""
    dtype = DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        what = "no datatype" if datatype is None else f"the unknown datatype {datatype!r}"
        raise RequestInvalid(f"input {name!r} has {what}\nthe protocol has {', '.join(DATATYPES)}")
    return dtype


def _from_elements(name: str, shape: tuple[int, ...], data: Any) -> Array:
    """BYTES: each element is its length in 4 bytes, then its bytes."""
    view, at = memoryview(data), 0
    items: list[bytes] = []
    count = math.prod(shape)
    while at < len(view) and len(items) <= count:
        if at + 4 > len(view):
            raise RequestInvalid(f"input {name!r}: the length of a BYTES element is cut off")
        (length,) = _LENGTH.unpack_from(view, at)
        at += 4 + length
        if at > len(view):
            raise RequestInvalid(f"input {name!r}: a BYTES element is cut off")
        items.append(bytes(view[at - length : at]))
    if len(items) != count or at != len(view):
        raise RequestInvalid(f"input {name!r}: its BYTES are not {count:,} elements")
    return _objects(items, shape)


def _objects(items: Sequence[bytes], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


def _numbers(name: str, datatype: str, flat: Sequence[Any]) -> Array:
    """JSON's numbers or booleans; those out of the type's range are refused.

    Triton converts them as C++ does: 300 becomes 44 as UINT8, 1e39 infinity as FP32.
    """
    dtype = DATATYPES[datatype]
    kinds = _JSON_KINDS["f" if datatype == "BF16" else dtype.kind]
    if not set(map(type, flat)) <= kinds:
        wrong = next(each for each in flat if type(each) not in kinds)
        shown = "a list or an object" if isinstance(wrong, (list, dict)) else json.dumps(wrong)
        raise RequestInvalid(
            f"input {name!r}: data has an element that is not {datatype}: {shown:.40}"
        )
    if dtype.kind in "iu" and flat:
        limits = np.iinfo(dtype)
        for each in (min(flat), max(flat)):
            if not limits.min <= each <= limits.max:
                raise _out_of_range(name, datatype, each)
    if kinds is not _JSON_KINDS["f"]:
        return np.array(flat, dtype)
    try:
        return narrow_floats(name, datatype, np.array(flat, np.float64))
    except OverflowError:  # an integer that no float holds
        raise _out_of_range(name, datatype, max(flat, key=abs)) from None


def _out_of_range(name: str, datatype: str, number: Any) -> RequestInvalid:
    dtype = DATATYPES[datatype]
    if dtype.kind in "iu":
        low, high = str(np.iinfo(dtype).min), str(np.iinfo(dtype).max)
    else:
        limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        low, high = f"{float(limits.min):.8g}", f"{float(limits.max):.8g}"
    return RequestInvalid(
        f"input {name!r}: {number!s:.40} is out of the range of {datatype}, {low} to {high}"
    )


def _flat(name: str, data: list[Any]) -> tuple[list[Any], list[int]]:
    """The elements of nested lists, and the sizes of the lists at each level."""
    sizes = [len(data)]
    while data and isinstance(data[0], list):
        size = len(data[0])
        if not all(isinstance(each, list) and len(each) == size for each in data):
            raise RequestInvalid(f"input {name!r}: data is nested unevenly")
        data = [each for row in data for each in row]
        sizes.append(size)
    return data, sizes


def _is_nested_as(sizes: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether nested lists have the sizes of a shape; its last axes may be in one list.

    Axes of size 1 may be there or not: they change no order.
    """
    nested = [size for size in sizes if size != 1]
    wanted = [size for size in shape if size != 1]
    return not nested or (len(nested) <= len(wanted) and nested[:-1] == wanted[: len(nested) - 1])


def _element(name: str, each: Any) -> bytes:
    if isinstance(each, dict) and set(each) == {"b64"}:  # as in TensorFlow Serving and KServe
        try:
            return base64.b64decode(each["b64"], validate=True)
        except (TypeError, ValueError):
            raise RequestInvalid(f"input {name!r}: an element is not base64") from None
    if not isinstance(each, str):
        raise RequestInvalid(f"input {name!r}: data has an element that is not text")
    return each.encode()


def _text(each: Any) -> str:
    if not isinstance(each, bytes):
        return str(each)
    try:
        return each.decode()
    except UnicodeDecodeError:
        return base64.b64encode(each).decode()
