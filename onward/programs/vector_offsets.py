"""The offsets of tensors in a flat vector, such as the parameters of one update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.programs.program import Layout, Shape, UpdateLayout

_LINE = 64  # bytes of a cache line, at which tensors are aligned


@dataclass(frozen=True)
class Places:
    """Each tensor's slice of a vector, and the size of the vector."""

    slices: dict[str, slice]
    shapes: dict[str, Shape]
    size: int

    @property
    def elements(self) -> int:
        """The number of elements of all tensors, without the gaps between them."""
        return sum(place.stop - place.start for place in self.slices.values())

    def gaps(self) -> Iterator[slice]:
        """The slices that belong to no tensor: they are zeros and must stay so."""
        end = 0
        for place in sorted(self.slices.values(), key=lambda each: int(each.start)):
            if place.start > end:
                yield slice(end, place.start)
            end = max(end, place.stop)
        if end < self.size:
            yield slice(end, self.size)


def place_parameters(layout: Layout, update: UpdateLayout) -> Places:
    """The parameters of an update, one after the other; gaps between them are zeros."""
    known = {parameter.name: parameter.shape for parameter in layout.parameters}
    shapes = {name: known[name] for name in update.parameters}
    return place(shapes, np.dtype(update.dtype))


def place(shapes: Mapping[str, Shape], dtype: np.dtype[Any]) -> Places:
    """Tensors of one type, one after the other, each aligned to a cache line.

    >>> place({"w": (2, 3), "b": (3,)}, np.dtype("float32")).slices
    {'w': slice(0, 6, None), 'b': slice(16, 19, None)}
    """
    step = _LINE // dtype.itemsize
    slices, size = {}, 0
    for name, shape in shapes.items():
        elements = int(np.prod(shape, dtype=np.int64))
        slices[name] = slice(size, size + elements)
        size += -(-elements // step) * step
    return Places(slices, dict(shapes), size)
