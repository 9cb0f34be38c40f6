"""Blocks: a matrix of weights in codes of few bits, with a scale for each block of a row.

    w[n, k] = (codes[n, k] - zero) * scales[n, k // block] + offset

`zero` is the middle of the codes, or a code of its own for each block (`zeros`), or there is a
float offset for each block (`offsets`), as in GGUF's Q4_1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_LARGEST_HALF = 60_000.0  # float16 ends at 65,504
_SMALLEST_HALF = 8e-6  # below it, rounding to float16 changes a scale by more than 1 in 256


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """A matrix of weights, one row for each output, in codes of few bits.

    Attributes:
        bits: of a code: 8, 4 or 2
        block: the weights of a row that share a scale
        codes: (outputs, inputs), uint8, from 0 to 2**bits - 1
        scales: (outputs, blocks), float32, each of them a float16 where that loses nothing
        zeros: (outputs, blocks), uint8; None: the middle, 2**(bits - 1), for all
        offsets: (outputs, blocks), float32; None: no offsets
    """

    bits: int
    block: int
    codes: Array
    scales: Array
    zeros: Array | None = None
    offsets: Array | None = None

    @property
    def scheme(self) -> str:
        """What a block stores in addition to its scale: "symmetric", "zeros" or "offsets"."""
        if self.offsets is not None:
            return "offsets"
        return "symmetric" if self.zeros is None else "zeros"

    def widen(self) -> Array:
        """The weights in float32: (outputs, inputs)."""
        size = self.codes.shape[1]
        zero = _middle(self.bits) if self.zeros is None else repeat(self.zeros, self.block, size)
        w = (self.codes.astype(np.float32) - zero) * repeat(self.scales, self.block, size)
        if self.offsets is not None:
            w += repeat(self.offsets, self.block, size)
        return w


def _middle(bits: int) -> np.float32:
    return np.float32(1 << (bits - 1))


def repeat(numbers: Array, block: int, size: int) -> Array:
    """One number for each weight of a row: (outputs, blocks) to (outputs, size)."""
    return np.repeat(numbers, block, axis=1)[:, :size]


def round_to_half(numbers: Array) -> Array:
    """Scales rounded to float16 where it holds all of them; unchanged otherwise."""
    sizes = np.abs(numbers)
    if not sizes.size or sizes.max() > _LARGEST_HALF or sizes.min() < _SMALLEST_HALF:
        return numbers.astype(np.float32)
    return numbers.astype(np.float16).astype(np.float32)


def is_half(numbers: Array) -> bool:
    """Whether float16 holds these numbers exactly."""
    with np.errstate(over="ignore"):
        return bool((numbers.astype(np.float16).astype(np.float32) == numbers).all())


def pack(codes: Array, bits: int) -> Array:
    """Codes of one byte as bytes of several codes, the first in the lowest bits.

    >>> pack(np.array([1, 2, 3]), 4).tolist()
    [33, 3]
    """
    flat = np.ascontiguousarray(codes, dtype=np.uint8).reshape(-1) & np.uint8((1 << bits) - 1)
    count = 8 // bits
    if flat.size % count:
        flat = np.concatenate([flat, np.zeros(-flat.size % count, np.uint8)])
    packed = flat[::count].copy()
    for place in range(1, count):
        packed |= flat[place::count] << np.uint8(bits * place)
    return packed


def unpack(packed: Array, bits: int, size: int) -> Array:
    """The first `size` codes of packed bytes.

    >>> unpack(np.array([33, 3], np.uint8), 4, 3).tolist()
    [1, 2, 3]
    """
    count = 8 // bits
    shifts = np.arange(count, dtype=np.uint8) * np.uint8(bits)
    codes = (packed.reshape(-1, 1) >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(codes.reshape(-1)[:size])
