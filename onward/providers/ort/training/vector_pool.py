"""VectorPool: temporary vectors whose memory is used again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onward.programs.program import Array

_BYTE = np.dtype(np.uint8)
_LINE = 64  # bytes of a cache line, at which vectors are aligned


def aligned_zeros(size: int, dtype: np.dtype[Any]) -> Array:
    """A vector of zeros, aligned to a cache line."""
    raw = np.empty(size * dtype.itemsize + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    vector = raw[start : start + size * dtype.itemsize].view(dtype)
    vector[...] = 0
    return vector


@dataclass
class _Buffer:
    memory: Array
    views: dict[tuple[int, str], Array] = field(default_factory=dict)

    def view(self, size: int, dtype: np.dtype[Any]) -> Array:
        """The same array object for the same size, so that bindings to it stay valid."""
        key = size, dtype.str
        if key not in self.views:
            self.views[key] = self.memory[: size * dtype.itemsize].view(dtype)
        return self.views[key]


class VectorPool:
    """Vectors that are taken and given back; there are never more buffers than are taken at once.

    A vector's contents are those of its last user.
    """

    def __init__(self) -> None:
        self._free: list[_Buffer] = []
        self._taken: dict[int, _Buffer] = {}

    @property
    def bytes(self) -> int:
        """The memory of all vectors, taken or not."""
        return sum(each.memory.nbytes for each in (*self._free, *self._taken.values()))

    def take(self, size: int, dtype: np.dtype[Any]) -> Array:
        """A vector from the smallest free buffer that it fits; else in place of the largest."""
        wanted = size * dtype.itemsize
        self._free.sort(key=lambda buffer: buffer.memory.nbytes)
        place = next((i for i, b in enumerate(self._free) if b.memory.nbytes >= wanted), -1)
        buffer = self._free.pop(place) if self._free else None
        if buffer is None or buffer.memory.nbytes < wanted:
            buffer = _Buffer(aligned_zeros(wanted, _BYTE))
        vector = buffer.view(size, dtype)
        self._taken[id(vector)] = buffer
        return vector

    def give_back(self, vector: Array) -> None:
        """Let others use the memory of a vector that was taken."""
        self._free.append(self._taken.pop(id(vector)))
