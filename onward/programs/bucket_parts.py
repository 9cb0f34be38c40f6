"""BucketParts: the vector of a bucket cut into parts, one for each process that shards it.

A flat update works on any slice of its vectors, so its bucket is cut into equal parts wherever they
end. Other updates need whole tensors: each tensor has one owner, and its part is what it owns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from onward.programs.program import Layout, Shape, UpdateLayout
from onward.programs.vector_offsets import Places, place

_LINE = 16  # elements: parts begin at cache lines


@dataclass(frozen=True)
class BucketParts:
    """The vector of one bucket, and the range of it that each process holds."""

    update: UpdateLayout
    places: Places  # of all tensors in the vector, whose size includes padding
    ranges: tuple[tuple[int, int], ...]
    owned: tuple[tuple[str, ...], ...] = ()  # the tensors of each process, if they are not cut

    @property
    def is_even(self) -> bool:
        """Whether all parts have the same size."""
        return self.update.flat

    @property
    def bytes(self) -> int:
        """The bytes of the whole vector."""
        return self.places.size * np.dtype(self.update.dtype).itemsize

    def own_update(self, rank: int) -> UpdateLayout:
        """The update of a process's part: of its own tensors, if it needs whole tensors."""
        if self.update.flat:
            return self.update
        return part_of_update(self.update, self.owned[rank])

    def own_places(self, rank: int) -> Places:
        """The tensors that a process owns, placed in its part."""
        start, stop = self.ranges[rank]
        own = {name: self.places.slices[name] for name in (self.owned[rank] if self.owned else ())}
        slices = {n: slice(s.start - start, s.stop - start) for n, s in own.items()}
        return Places(slices, {n: self.places.shapes[n] for n in own}, stop - start)

    def pieces(self, rank: int) -> Iterator[tuple[str, slice, slice]]:
        """The tensors that a process has elements of: name, slice of its part, of the tensor."""
        start, stop = self.ranges[rank]
        for name, where in self.places.slices.items():
            first, last = max(start, where.start), min(stop, where.stop)
            if first < last:
                in_part = slice(first - start, last - start)
                yield name, in_part, slice(first - where.start, last - where.start)


@dataclass(frozen=True)
class Sharding:
    """Which part of every bucket a process holds, and what it holds whole."""

    rank: int
    size: int
    zero: int  # what is sharded: 1 slots, 2 gradients too, 3 parameters too
    buckets: tuple[BucketParts, ...]
    offload: bool = False  # whether the own parts are in the memory of the CPU

    @property
    def has_whole_parameters(self) -> bool:
        return self.zero < 3

    @property
    def has_whole_gradients(self) -> bool:
        return self.zero < 2


def shard_buckets(
    layout: Layout, *, rank: int, size: int, zero: int, offload: bool = False
) -> Sharding:
    """Cut the buckets of a layout into parts for `size` processes."""
    known = {p.name: p.shape for p in layout.parameters}
    owners = _owners(layout, size)
    buckets = []
    for update in layout.updates:
        shapes = {name: known[name] for name in update.parameters}
        cut = _even_parts if update.flat else _whole_tensors
        buckets.append(cut(update, shapes, owners, size))
    return Sharding(rank, size, zero, tuple(buckets), offload)


def _even_parts(
    update: UpdateLayout, shapes: Mapping[str, Shape], owners: Mapping[str, int], size: int
) -> BucketParts:
    places = place(shapes, np.dtype(update.dtype))
    part = -(-places.size // (size * _LINE)) * _LINE
    ranges = tuple((i * part, (i + 1) * part) for i in range(size))
    return BucketParts(update, replace(places, size=size * part), ranges)


def _whole_tensors(
    update: UpdateLayout, shapes: Mapping[str, Shape], owners: Mapping[str, int], size: int
) -> BucketParts:
    ordered = {n: shapes[n] for n in sorted(shapes, key=lambda name: owners[name])}
    places = place(ordered, np.dtype(update.dtype))
    owned = tuple(tuple(n for n in ordered if owners[n] == rank) for rank in range(size))
    ranges, start = [], 0
    for own in owned:
        stop = start + place({n: shapes[n] for n in own}, np.dtype(update.dtype)).size
        ranges.append((start, stop))
        start = stop
    return BucketParts(update, places, tuple(ranges), owned)


def _owners(layout: Layout, size: int) -> dict[str, int]:
    """The owner of each tensor that is not cut: the largest first, to who has the fewest bytes."""
    kinds = {name: u for u in layout.updates if not u.flat for name in u.parameters}
    held, owners = [0] * size, {}
    for parameter in sorted(layout.parameters, key=lambda p: (-p.size, p.name)):
        if parameter.name in kinds:
            owner = held.index(min(held))
            owners[parameter.name] = owner
            held[owner] += parameter.size * np.dtype(kinds[parameter.name].dtype).itemsize
    return owners


def part_of_update(update: UpdateLayout, names: Collection[str]) -> UpdateLayout:
    """An update of some of the parameters."""
    slots = {
        slot: {name: shape for name, shape in shapes.items() if name in set(names)}
        for slot, shapes in update.slots.items()
    }
    return replace(update, parameters=tuple(names), slots=slots)
