"""Encode a tensor as chunks: planes of bits, of which those that compress are deflated.

`onward/graph/packed/chunks.py` describes the layouts and decodes them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.packed.chunks import (
    BFLOAT16,
    BYTES,
    CHUNK,
    CHUNK_HEAD,
    DEFLATED,
    FLOAT32,
    GROUP,
    GROUPED,
    GROUPS,
    GROUPS_HEAD,
    NIBBLES,
    PLANE_HEAD,
    RAW,
)

Array = np.ndarray[Any, Any]

_SMALL = 1 << 14  # bytes of a tensor whose planes would cost more time than they save bytes
_SAMPLE = 1 << 14  # bytes of a plane that show whether it compresses
_WORTH = 0.98  # a plane that deflates to more than this is stored as it is
_WINDOW = GROUP * GROUPS  # exponents that have a code
_BITS_ALLOWED = 0.4  # an exponent, above the entropy, for a code that is faster to read
_HUFFMAN = (1, zlib.Z_HUFFMAN_ONLY)
_MATCHES = (6, zlib.Z_DEFAULT_STRATEGY)


def encode_tensor(data: Array, dtype: ir.DataType) -> Iterator[bytes]:
    """The chunks of a tensor, from its bytes and its type."""
    if not len(data):
        return
    layout, width = _choose_layout(data, dtype) if len(data) > _SMALL else (BYTES + 1, 1)
    for begin in range(0, len(data), CHUNK * width):
        yield _encode_chunk(data[begin : begin + CHUNK * width], layout, width)


def _choose_layout(data: Array, dtype: ir.DataType) -> tuple[int, int]:
    """The layout that makes a chunk from the middle smallest, and the bytes of its elements."""
    layouts = _layouts(dtype)
    if len(layouts) == 1:
        return layouts[0]
    widest = max(width for _, width in layouts)
    begin = len(data) // 2 // widest * widest
    begin = max(0, min(begin, len(data) - CHUNK * widest) // widest * widest)
    sample = data[begin : begin + CHUNK * widest]
    sizes = [len(_encode_chunk(sample[: CHUNK * w], layout, w)) for layout, w in layouts]
    shares = [size / min(len(sample), CHUNK * w) for size, (_, w) in zip(sizes, layouts)]
    return layouts[int(np.argmin(shares))]


def _layouts(dtype: ir.DataType) -> list[tuple[int, int]]:
    """The layouts to try for a type; each with the bytes of an element."""
    if dtype == ir.DataType.FLOAT:
        return [(FLOAT32, 4), (BYTES + 1, 1)]
    if dtype == ir.DataType.BFLOAT16:
        return [(BFLOAT16, 2), (BYTES + 1, 1)]
    width = dtype.bitwidth // 8
    if width <= 1:
        is_integer = dtype in (ir.DataType.INT8, ir.DataType.UINT8)
        return [(NIBBLES, 1), (BYTES + 1, 1)] if is_integer else [(BYTES + 1, 1)]
    return [(BYTES + width, width), (BYTES + 1, 1)]


def _encode_chunk(data: Array, layout: int, width: int) -> bytes:
    planes = _SPLITS[layout](data) if layout in _SPLITS else _split_bytes(data, width)
    return CHUNK_HEAD.pack(layout, len(data) // width) + b"".join(planes)


# -- layouts ---------------------------------------------------------------------------------------


def _split_float32(data: Array) -> list[bytes]:
    words = data.view("<u2")
    low = np.ascontiguousarray(words[0::2]).view(np.uint8)
    return [_encode_plane(low), *_split_halves(words[1::2])]


def _split_bfloat16(data: Array) -> list[bytes]:
    return _split_halves(data.view("<u2"))


def _split_halves(halves: Array) -> list[bytes]:
    """sign << 7 | mantissa, and the exponents, of sign << 15 | exponent << 7 | mantissa"""
    mantissas = ((halves & 0x7F) | ((halves >> 8) & 0x80)).astype(np.uint8)
    exponents = ((halves >> 7) & 0xFF).astype(np.uint8)
    return [_encode_plane(mantissas), _encode_exponents(exponents)]


def _split_nibbles(data: Array) -> list[bytes]:
    shifted = data + np.uint8(128)  # modulo 256: int8 in the order of its values
    shifted = np.append(shifted, np.zeros(len(shifted) % 2, np.uint8))
    first, second = shifted[: len(shifted) // 2], shifted[len(shifted) // 2 :]
    lower = (first & np.uint8(15)) | (second << np.uint8(4))
    upper = (first >> np.uint8(4)) | (second & np.uint8(0xF0))
    return [_encode_plane(lower), _encode_plane(upper)]


def _split_bytes(data: Array, width: int) -> list[bytes]:
    return [_encode_plane(np.ascontiguousarray(data[byte::width])) for byte in range(width)]


_SPLITS: dict[int, Callable[[Array], Sequence[bytes]]] = {
    FLOAT32: _split_float32,
    BFLOAT16: _split_bfloat16,
    NIBBLES: _split_nibbles,
}


# -- planes ----------------------------------------------------------------------------------------


def _encode_plane(plane: Array) -> bytes:
    """A plane, deflated with the better of two settings if that makes it smaller."""
    sample = plane[len(plane) // 2 :][:_SAMPLE].tobytes()
    sizes = {each: len(_deflate(sample, each)) for each in (_HUFFMAN, _MATCHES)}
    best = min(sizes, key=sizes.__getitem__)
    if sizes[best] <= _WORTH * len(sample):
        deflated = _deflate(plane.tobytes(), best)
        if len(deflated) < len(plane):
            return _plane(DEFLATED, deflated)
    return _plane(RAW, plane.tobytes())


def _encode_exponents(exponents: Array) -> bytes:
    """Exponents in groups of four; as a plain plane if that may be much smaller."""
    counts = np.bincount(exponents, minlength=256)
    bases = np.arange(257 - _WINDOW)
    groups = np.stack([_sums(counts, bases + GROUP * g, GROUP) for g in range(GROUPS)], axis=1)
    rare = len(exponents) - groups.sum(axis=1)
    bits = 2 * len(exponents) + 40 * rare + len(exponents) * _entropy(groups)
    base = int(np.argmin(bits))
    if bits[base] > len(exponents) * (_entropy(counts) + _BITS_ALLOWED):
        return _encode_plane(exponents)
    codes = exponents - np.uint8(base)  # modulo 256
    places = np.flatnonzero(codes >= _WINDOW)
    codes[places] = 0
    parts = (
        GROUPS_HEAD.pack(base, len(places)),
        places.astype("<u4").tobytes(),
        exponents[places].tobytes(),
        _pack_quarters(codes % np.uint8(GROUP)),
        _deflate(_pack_quarters(codes // np.uint8(GROUP)), _HUFFMAN),
    )
    return _plane(GROUPED, b"".join(parts))


def _sums(counts: Array, begins: Array, length: int) -> Array:
    """The sum of `length` counts from each begin on."""
    totals = np.append(0, np.cumsum(counts))
    sums: Array = totals[begins + length] - totals[begins]
    return sums


def _entropy(counts: Array) -> Array:
    """The bits that one element takes at least, from the counts along the last axis."""
    totals = np.maximum(counts.sum(axis=-1, keepdims=True), 1)
    shares = counts / totals
    bits: Array = -(shares * np.log2(np.where(shares, shares, 1))).sum(axis=-1)
    return bits


def _pack_quarters(numbers: Array) -> bytes:
    """Numbers of 2 bits, four in a byte; each from another quarter of the array."""
    numbers = np.append(numbers, np.zeros(-len(numbers) % 4, np.uint8)).reshape(4, -1)
    packed = numbers[0] | numbers[1] << 2 | numbers[2] << 4 | numbers[3] << 6
    return bytes(packed.astype(np.uint8))


def _deflate(data: bytes, settings: tuple[int, int]) -> bytes:
    level, strategy = settings
    writer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, 9, strategy)
    return writer.compress(data) + writer.flush()


def deflate_best(data: bytes) -> bytes:
    """Raw deflate, as small as zlib makes it."""
    return _deflate(data, (9, zlib.Z_DEFAULT_STRATEGY))


def _plane(codec: int, stored: bytes) -> bytes:
    return PLANE_HEAD.pack(codec, len(stored)) + stored
