"""Find where a forward pass can be cut into layers: places that few bytes cross."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import onnx_ir as ir

from onward.programs.memory.forward_backward import (
    ForwardBackward,
    sources,
    storage_of,
    storages,
)
from onward.programs.memory.train_sizes import TrainSizes


@dataclass(frozen=True)
class Boundary:
    """A place between two forward nodes, and the storages that later forward nodes read."""

    after: int  # the number of the node before it
    crossing: frozenset[ir.Value]


def cut_into_layers(parts: ForwardBackward, sizes: TrainSizes, count: int) -> list[Boundary]:
    """Cut a forward pass into at most `count` layers with about equal bytes to save in each.

    Each boundary is where the fewest bytes cross, between half a layer before and half a layer
    after its place among equal layers.
    """
    ends = _last_reads(parts)
    crossing = _crossing_bytes(parts, ends, sizes)
    saved = [0] * len(parts.forward)
    for value in storages(parts.waiting):
        if value in parts.place:
            saved[parts.place[value]] += sizes.bytes_of(value)
    total = list(accumulate(saved))
    if not total or not total[-1]:
        return []
    each = total[-1] / count
    places: list[int] = []
    for number in range(1, count):
        first, last = (number - 0.5) * each, (number + 0.5) * each
        window = [i for i, so_far in enumerate(total[:-1]) if first <= so_far < last]
        if window:
            places.append(min(window, key=lambda i: (crossing[i], abs(total[i] - number * each))))
    return [_boundary(place, ends) for place in dict.fromkeys(places)]


def _last_reads(parts: ForwardBackward) -> dict[ir.Value, tuple[int, int]]:
    """For each storage of the forward pass: its node, and the last forward node that reads it."""
    ends: dict[ir.Value, tuple[int, int]] = {}
    for i, node in enumerate(parts.forward):
        for value in node.outputs:
            if storage_of(value) is value:
                ends[value] = (i, i)
        for value in sources(node):
            storage = storage_of(value)
            if storage in ends:
                ends[storage] = (ends[storage][0], i)
    return ends


def _crossing_bytes(
    parts: ForwardBackward, ends: dict[ir.Value, tuple[int, int]], sizes: TrainSizes
) -> Sequence[int]:
    """The bytes that are still to be read after each forward node."""
    change = [0] * (len(parts.forward) + 1)
    for value, (first, last) in ends.items():
        change[first] += sizes.bytes_of(value)
        change[last] -= sizes.bytes_of(value)
    return list(accumulate(change))


def _boundary(place: int, ends: dict[ir.Value, tuple[int, int]]) -> Boundary:
    crossing = (value for value, (first, last) in ends.items() if first <= place < last)
    return Boundary(place, frozenset(crossing))
