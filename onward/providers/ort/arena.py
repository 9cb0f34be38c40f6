"""onnxruntime's arena, imitated: where its allocations will lie, and which memory they touch.

The arena takes regions of doubling size from the system, gives out the smallest free chunk that
fits, in multiples of 256 bytes, and keeps what is freed. The first run with new shapes allocates
tensor by tensor and remembers the pattern; later runs take one block for the whole pattern. A
region costs nothing until it is written to: what counts is the pages that were touched.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field

import numpy as np

from onward.graph.lifetimes import aligned

STEP = 256  # every allocation is a multiple of this
FIRST_REGION = 1 << 20
_MOST_WASTE = 128 << 20  # a chunk that would waste more is split
_LARGEST_DOUBLING = 1 << 30
_HANDLE = 8  # bytes that the arena keeps for each step of a region


@dataclass(eq=False)
class Chunk:
    """A piece of a region, free or in use."""

    region: int
    offset: int
    size: int
    used: bool = False


@dataclass
class Region:
    """Memory from the system; `touched` has a flag for each page."""

    size: int
    chunks: list[Chunk]
    touched: np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass
class Arena:
    """The regions of one session, and how they grow."""

    regions: list[Region] = field(default_factory=list)
    _next: int = FIRST_REGION

    @property
    def resident(self) -> int:
        """The bytes that were ever touched, and the arena's own table of chunks."""
        pages = sum(int(region.touched.sum()) for region in self.regions)
        return pages * mmap.PAGESIZE + self.reserved // STEP * _HANDLE

    @property
    def reserved(self) -> int:
        """The bytes of all regions, touched or not: what onnxruntime holds against a limit."""
        return sum(region.size for region in self.regions)

    def alloc(self, nbytes: int, touches: bool = True) -> Chunk | None:
        """A chunk for so many bytes; None for none, which take no memory."""
        if nbytes <= 0:
            return None
        size = aligned(nbytes, STEP)
        chunk = self._best(size) or self._extend(size)
        if chunk.size >= 2 * size or chunk.size - size >= _MOST_WASTE:
            rest = Chunk(chunk.region, chunk.offset + size, chunk.size - size)
            chunks = self.regions[chunk.region].chunks
            chunks.insert(chunks.index(chunk) + 1, rest)
            chunk.size = size
        chunk.used = True
        if touches:
            self.touch(chunk, 0, nbytes)
        return chunk

    def touch(self, chunk: Chunk, offset: int, nbytes: int) -> None:
        """Write to a part of a chunk."""
        first = chunk.offset + offset
        end = first + nbytes
        page = mmap.PAGESIZE
        self.regions[chunk.region].touched[first // page : -(-end // page)] = True

    def free(self, chunk: Chunk | None) -> None:
        """Give a chunk back to the arena, joined with free neighbours."""
        if chunk is None:
            return
        chunk.used = False
        chunks = self.regions[chunk.region].chunks
        at = chunks.index(chunk)
        if at + 1 < len(chunks) and not chunks[at + 1].used:
            chunk.size += chunks.pop(at + 1).size
        if at > 0 and not chunks[at - 1].used:
            chunks[at - 1].size += chunks.pop(at).size

    def _best(self, size: int) -> Chunk | None:
        """The smallest free chunk; of equals the one that lies lowest: regions grow downwards."""
        free = (
            chunk
            for region in self.regions
            for chunk in region.chunks
            if not chunk.used and chunk.size >= size
        )
        return min(free, key=lambda c: (c.size, -c.region, c.offset), default=None)

    def _extend(self, size: int) -> Chunk:
        grown = size > self._next
        while size > self._next:
            self._next *= 2
        region = self._next
        if not grown and self._next < _LARGEST_DOUBLING:
            self._next *= 2
        chunk = Chunk(len(self.regions), 0, region)
        pages = np.zeros(-(-region // mmap.PAGESIZE), np.bool_)
        self.regions.append(Region(region, [chunk], pages))
        return chunk


@dataclass
class Pattern:
    """The block that onnxruntime lays a run's tensors out in, as it does: tensor after tensor."""

    blocks: dict[int, tuple[int, int]] = field(default_factory=dict)  # buffer: (offset, size)
    size: int = 0
    _alive: list[int] = field(default_factory=list)  # by offset

    def alloc(self, buffer: int, nbytes: int) -> None:
        """Place a buffer in the tightest gap among those alive, else behind the last."""
        size = aligned(nbytes, STEP)
        if size == 0:
            return
        best, place, end, waste = 0, len(self._alive), 0, -1
        for at, other in enumerate(self._alive):
            start, length = self.blocks[other]
            gap = start - end
            if gap >= size and (waste < 0 or gap - size < waste):
                best, place, waste = end, at, gap - size
            end = start + length
        if waste < 0:
            best = end
        self.blocks[buffer] = (best, size)
        self._alive.insert(place, buffer)
        self.size = max(self.size, best + size)

    def free(self, buffer: int) -> None:
        if buffer in self._alive:
            self._alive.remove(buffer)
