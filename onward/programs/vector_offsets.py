"""Where tensors lie in vectors, such as the parameters of one update: the same on every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.programs.program import Layout, Shape, UpdateLayout

_LINE = 64  # bytes: a tensor begins where a line of a processor's cache does


@dataclass(frozen=True)
class Places:
    """Each tensor's part of a vector, and how long the vector is."""

    slices: dict[str, slice]
    shapes: dict[str, Shape]
    size: int


def place_parameters(layout: Layout, update: UpdateLayout) -> Places:
    """The parameters of an update one behind the other; gaps between them are filled with zeros."""
    known = {parameter.name: parameter.shape for parameter in layout.parameters}
    shapes = {name: known[name] for name in update.parameters}
    return place(shapes, np.dtype(update.dtype))


def place(shapes: Mapping[str, Shape], dtype: np.dtype[Any]) -> Places:
    """Tensors of one type one behind the other, each at the beginning of a cache line.

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
