"""Decode the chunks of a packed tensor: planes of bytes, each raw or deflated.

    chunk    u8 layout, u32 elements, then its planes
    plane    u8 codec, u32 length, then its bytes

Weights are noise in their mantissas, but their exponents take few values. So a layout separates
the bits of the elements into planes, and only those that compress are deflated:

    float32     low 16 bits; sign and upper 7 bits of the mantissa; exponents
    bfloat16    sign and mantissa; exponents
    nibbles     of bytes + 128: the lower 4 bits, the upper 4 bits; two elements share a byte
    bytes N     the first bytes of all elements of N bytes, the second bytes, ...

The codec GROUPED divides 16 exponents in a row into groups of four. Inside a group they are almost
equally frequent: their 2 bits are stored as they are. Which group it is takes 2 bits more, and four
of these are one symbol of a Huffman code: a quarter of the symbols to decode, which is what takes
the time. Weights need 2.75 bits where a Huffman code of exponents needs 2.6. The few exponents
outside of the 16 are stored separately.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Buffer = bytes | memoryview

CHUNK = 1 << 17  # elements: the arrays of one chunk fit into the cache of a core
CHUNK_HEAD, PLANE_HEAD = struct.Struct("<BI"), struct.Struct("<BI")
GROUPS_HEAD = struct.Struct("<BI")  # the lowest exponent, the number of those outside
GROUP, GROUPS = 4, 4  # exponents of a group, groups
FLOAT32, BFLOAT16, NIBBLES, BYTES = 0x20, 0x21, 0x22, 0x00  # BYTES + N: elements of N bytes
RAW, DEFLATED, GROUPED = 0, 1, 2
_SHIFTS, _THREE = np.array([[0], [2], [4], [6]], np.uint8), np.uint8(3)
_TWICE, _SIGN_AND_MANTISSA, _SHIFT_7 = np.uint16(0x101), np.uint16(0x807F), np.uint16(0x80)
_LARGEST_ELEMENT = 16  # bytes, of complex128


class ChunkError(ValueError):
    """The bytes are not those of a packed tensor."""


def decode_tensor(stored: memoryview, size: int) -> Array:
    """The bytes of a packed tensor, which has `size` of them."""
    out = np.empty(size, np.uint8)
    begin = 0
    for layout, elements, planes in _chunks(stored):
        width, decode = _decoder(layout)
        end = begin + elements * width
        if not 0 < elements <= CHUNK or end > size:
            raise ChunkError("a chunk has a wrong number of elements")
        decode(planes, out[begin:end])
        begin = end
    if begin != size:
        raise ChunkError(f"{begin:,} bytes instead of {size:,}")
    return out


class _Planes:
    """The planes of one chunk, read one after another."""

    def __init__(self, stored: memoryview, place: int) -> None:
        self._stored, self.place = stored, place

    def read(self, size: int) -> Array:
        """The next plane, of `size` bytes."""
        codec, begin, end = self._next()
        stored = self._stored[begin:end]
        if codec == RAW and len(stored) == size:
            return np.frombuffer(stored, np.uint8)
        if codec == DEFLATED:
            return np.frombuffer(inflate(stored, size), np.uint8)
        if codec == GROUPED:
            return _read_groups(stored, size)
        raise ChunkError(f"a plane has {len(stored):,} bytes instead of {size:,}")

    def _next(self) -> tuple[int, int, int]:
        codec, length = _unpack(PLANE_HEAD, self._stored, self.place)
        begin = self.place + PLANE_HEAD.size
        self.place = begin + length
        if self.place > len(self._stored):
            raise ChunkError("a plane ends after the tensor")
        return codec, begin, self.place


def _chunks(stored: memoryview) -> Iterator[tuple[int, int, _Planes]]:
    place = 0
    while place < len(stored):
        layout, elements = _unpack(CHUNK_HEAD, stored, place)
        planes = _Planes(stored, place + CHUNK_HEAD.size)
        yield layout, elements, planes
        place = planes.place


def _unpack(form: struct.Struct, stored: memoryview, place: int) -> tuple[int, int]:
    if place + form.size > len(stored):
        raise ChunkError("it ends too early")
    first, second = form.unpack_from(stored, place)
    return first, second


def inflate(stored: Buffer, size: int) -> bytes:
    """Undo raw deflate; the result must have `size` bytes.

    Deflate makes at most 1032 bytes of one, so that a small file cannot fill the memory.
    """
    try:
        data = zlib.decompress(stored, -zlib.MAX_WBITS, size + 1)
    except zlib.error as error:
        raise ChunkError(f"it does not inflate: {error}") from None
    if len(data) != size:
        raise ChunkError(f"it inflates to {len(data):,} bytes instead of {size:,}")
    return data


def _read_groups(stored: memoryview, size: int) -> Array:
    base, rare = GROUPS_HEAD.unpack_from(_cut(stored, GROUPS_HEAD.size)[0])
    quarter = (size + 3) // 4
    places, rest = _cut(stored[GROUPS_HEAD.size :], 4 * rare)
    values, rest = _cut(rest, rare)
    offsets, deflated = _cut(rest, quarter)
    exponents = _unpack_quarters(inflate(deflated, quarter))
    exponents *= np.uint8(GROUP)
    exponents |= _unpack_quarters(offsets)
    exponents += np.uint8(base)
    exponents = exponents[:size]
    if rare:
        where = np.frombuffer(places, "<u4")
        if int(where.max()) >= size:
            raise ChunkError("an exponent lies outside of its chunk")
        exponents[where] = np.frombuffer(values, np.uint8)
    return exponents


def _unpack_quarters(stored: Buffer) -> Array:
    """Numbers of 2 bits: byte i of n has those at i, i + n, i + 2 n and i + 3 n."""
    numbers = np.right_shift(np.frombuffer(stored, np.uint8), _SHIFTS)
    numbers &= _THREE
    return numbers.reshape(-1)


def _cut(stored: memoryview, length: int) -> tuple[memoryview, memoryview]:
    if len(stored) < length:
        raise ChunkError("it ends too early")
    return stored[:length], stored[length:]


# -- layouts ---------------------------------------------------------------------------------------


def _decoder(layout: int) -> tuple[int, Callable[[_Planes, Array], None]]:
    """The bytes of an element, and the function that joins its planes."""
    if layout in _JOINS:
        return _JOINS[layout]
    width = layout - BYTES
    if not 0 < width <= _LARGEST_ELEMENT:
        raise ChunkError(f"its layout {layout} does not exist")
    return width, partial(_join_bytes, width)


def _join_float32(planes: _Planes, out: Array) -> None:
    words = out.view("<u2")
    words[0::2] = planes.read(len(out) // 2).view("<u2")
    upper = np.empty(len(out) // 4, "<u2")
    _join_halves(planes, upper)
    words[1::2] = upper


def _join_bfloat16(planes: _Planes, out: Array) -> None:
    _join_halves(planes, out.view("<u2"))


def _join_halves(planes: _Planes, out: Array) -> None:
    """sign << 15 | exponent << 7 | mantissa"""
    out[:] = planes.read(len(out))
    out *= _TWICE  # the sign, the byte's upper bit, is now in the upper byte, too
    out &= _SIGN_AND_MANTISSA
    exponents = planes.read(len(out)).astype("<u2")
    exponents *= _SHIFT_7
    out |= exponents


def _join_nibbles(planes: _Planes, out: Array) -> None:
    half = (len(out) + 1) // 2
    lower, upper = planes.read(half), planes.read(half)
    np.bitwise_or(lower & np.uint8(15), upper << np.uint8(4), out=out[:half])
    rest = len(out) - half
    np.bitwise_or((lower >> np.uint8(4))[:rest], (upper & np.uint8(0xF0))[:rest], out=out[half:])
    out += np.uint8(128)  # modulo 256


def _join_bytes(width: int, planes: _Planes, out: Array) -> None:
    for byte in range(width):
        out[byte::width] = planes.read(len(out) // width)


_JOINS: dict[int, tuple[int, Callable[[_Planes, Array], None]]] = {
    FLOAT32: (4, _join_float32),
    BFLOAT16: (2, _join_bfloat16),
    NIBBLES: (1, _join_nibbles),
}
