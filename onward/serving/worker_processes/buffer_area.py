"""Memory that a server shares with one worker process: tensors pass through it, not the pipe.

    places, rest = area.put(buffers)          # those that fit are in the area, the rest is sent
    buffers = area.take(places, rest)         # on the other side

A round trip through a pipe takes two to five times as long, whatever the size. Each direction has
its half of the area. Its pages take memory when they are first used, up to the largest batch.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from onward.serving.requests import Array

AREA_BYTES = 256 << 20  # of address space; pages that are never used take no memory
_ALIGNMENT = 64  # bytes; onnxruntime copies feeds that are aligned less

Places = list[list[int] | None]  # [start, size] of each buffer; None: it is in the pipe


class BufferArea:
    """A mapping that two processes share; `writes_first_half` on one side only."""

    def __init__(self, file: int, *, writes_first_half: bool, copies: bool) -> None:
        self.file = file
        self._size = os.fstat(file).st_size
        self._bytes = np.frombuffer(mmap.mmap(file, self._size), np.uint8)
        half = self._size // 2
        self._to_write = (0, half) if writes_first_half else (half, self._size)
        self._to_read = (half, self._size) if writes_first_half else (0, half)
        self._copies = copies  # what is read stays, whatever the other process writes later

    def close(self) -> None:
        """Release the file; arrays that were read without a copy keep their pages."""
        os.close(self.file)

    def put(self, buffers: Sequence[Any]) -> tuple[Places, list[Any]]:
        """Write the buffers that fit; where they are, and those that must be sent."""
        at, end = self._to_write
        places: Places = []
        rest: list[Any] = []
        for buffer in buffers:
            data = np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)
            if at + data.size > end:
                places.append(None)
                rest.append(buffer)
                continue
            self._bytes[at : at + data.size] = data
            places.append([at, data.size])
            at += -(-data.size // _ALIGNMENT) * _ALIGNMENT
        return places, rest

    def take(self, places: Any, rest: Iterator[Array]) -> Iterator[Array]:
        """The buffers in their order. ValueError: a place is not within the area."""
        return iter([next(rest) if place is None else self._read(place) for place in places])

    def _read(self, place: Any) -> Array:
        start, size = place
        first, last = self._to_read
        if type(start) is not int or type(size) is not int:
            raise ValueError(f"invalid buffer position: {place}")
        if size < 0 or not first <= start <= start + size <= last:
            raise ValueError(f"the buffer position {place} is outside of the area")
        found = self._bytes[start : start + size]
        return found.copy() if self._copies else found


def create_area() -> BufferArea | None:
    """The server's side of a new area; None on a system that has none."""
    if sys.platform != "linux":
        return None
    file = os.memfd_create("onward-tensors")
    os.ftruncate(file, AREA_BYTES)
    return BufferArea(file, writes_first_half=True, copies=True)


def open_area(file: int) -> BufferArea:
    """The worker's side of an area that it inherited."""
    return BufferArea(file, writes_first_half=False, copies=False)
