"""Where the parameters of one update lie in its vectors: the same places on every engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onward.programs.program import Layout, Shape, UpdateLayout

_LINE = 64  # bytes: a tensor begins where a line of a processor's cache does


@dataclass(frozen=True)
class Places:
    """Each parameter's part of a vector, and how long the vector is."""

    slices: dict[str, slice]
    shapes: dict[str, Shape]
    size: int


def place_parameters(layout: Layout, update: UpdateLayout) -> Places:
    """The parameters of an update one behind the other; gaps between them are filled with zeros."""
    known = {parameter.name: parameter for parameter in layout.parameters}
    step = _LINE // np.dtype(update.dtype).itemsize
    slices, size = {}, 0
    for name in update.parameters:
        slices[name] = slice(size, size + known[name].size)
        size += -(-known[name].size // step) * step
    return Places(slices, {name: known[name].shape for name in update.parameters}, size)
