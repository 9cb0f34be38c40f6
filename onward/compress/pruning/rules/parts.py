"""Axes of operators that join and pick parts: Concat, Split, Slice, Gather."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.compress.pruning.axes import Axes, constant, known_sizes, rank
from onward.compress.pruning.cut import CUTS, Cut
from onward.compress.pruning.rules.reading import given
from onward.graph.operator_table import OpTable

PARTS = OpTable()


@PARTS("Concat")
def _concat(node: ir.Node, axes: Axes) -> None:
    y = node.outputs[0]
    count = rank(y)
    values = [x for x in node.inputs if x is not None]
    if not count or any(rank(x) != count for x in values):
        return
    axis = node.attributes.get_int("axis", 0) % count
    _tie_parts(axes, y, values, axis, count)


@PARTS("Split")
def _split(node: ir.Node, axes: Axes) -> None:
    x = node.inputs[0]
    count = rank(x)
    if x is None or not count or any(rank(y) != count for y in node.outputs):
        return
    axis = node.attributes.get_int("axis", 0) % count
    _tie_parts(axes, x, list(node.outputs), axis, count)


def _tie_parts(axes: Axes, whole: ir.Value, parts: list[ir.Value], axis: int, count: int) -> None:
    """Position i of a part is position i + offset of the whole; other axes are tied."""
    for part in parts:
        for place in range(count):
            if place != axis:
                axes.tie((part, place), (whole, place))
    sizes = [axes.size((part, axis)) for part in parts]
    total = axes.size((whole, axis))
    if total is None or None in sizes or sum(size or 0 for size in sizes) != total:
        return
    offset = 0
    for part, size in zip(parts, sizes, strict=True):
        places = np.arange(size or 0)
        axes.tie_positions((part, axis), places, (whole, axis), places + offset)
        offset += size or 0


@CUTS("Split")
def _cut_split(node: ir.Node, cut: Cut) -> None:
    x = node.inputs[0]
    axis = node.attributes.get_int("axis", 0) % (rank(x) or 1)
    if x is None or cut.kept(x, axis) is None:
        return
    node.attributes.pop("num_outputs", None)
    cut.set_input(node, 1, np.array([cut.size(y, axis) for y in node.outputs], np.int64))


@PARTS("Slice")
def _slice(node: ir.Node, axes: Axes) -> None:
    """Axes that are not cut are tied; of one that is cut in steps of 1, the part that remains."""
    x, y = node.inputs[0], node.outputs[0]
    count, ranges = rank(x), slice_ranges(node)
    if x is None or not count or rank(y) != count or ranges is None:
        return
    for axis in range(count):
        if axis not in ranges:
            axes.tie((x, axis), (y, axis))
            continue
        found, size = ranges[axis], axes.size((x, axis))
        if found is None or size is None or found[2] != 1:
            continue
        places = np.arange(size)[slice(*found)]
        if axes.size((y, axis)) == len(places):
            axes.tie_positions((y, axis), np.arange(len(places)), (x, axis), places)


def slice_ranges(node: ir.Node) -> dict[int, tuple[int, int, int] | None] | None:
    """Start, end and step of each axis that a Slice cuts; None where they are computed."""
    count, listed = rank(node.inputs[0]), constant(given(node, 3))
    starts, ends, steps = (given(node, place) for place in (1, 2, 4))
    length = next((n for v in (starts, ends) if v is not None and (n := known_sizes(v))), None)
    if count is None or (given(node, 3) is not None and listed is None):
        return None
    if listed is None:
        if not length or length[0] is None:
            return None
        listed = np.arange(length[0])
    a, b = constant(starts), constant(ends)
    c = constant(steps) if steps is not None else np.ones(len(listed), np.int64)
    found: dict[int, tuple[int, int, int] | None] = {}
    for place, axis in enumerate(listed.tolist()):
        known = a is not None and b is not None and c is not None
        found[int(axis) % count] = (
            (int(a[place]), int(b[place]), int(c[place])) if known else None  # type: ignore[index]
        )
    return found


@CUTS("Slice")
def _cut_slice(node: ir.Node, cut: Cut) -> None:
    x, ranges = node.inputs[0], slice_ranges(node)
    if x is None or ranges is None:
        return
    if not any(cut.kept(x, axis) is not None for axis in ranges):
        return
    starts, ends = (constant(given(node, place)) for place in (1, 2))
    assert starts is not None and ends is not None
    first, last = starts.copy(), ends.copy()
    for place, (axis, found) in enumerate(ranges.items()):
        kept = cut.kept(x, axis)
        if kept is None or found is None:
            continue
        begin, end, _ = slice(*found).indices(len(kept))
        first[place] = int(kept[:begin].sum())
        last[place] = first[place] + int(kept[begin:end].sum())
    cut.set_input(node, 1, first)
    cut.set_input(node, 2, last)


@PARTS("Gather")
def _gather(node: ir.Node, axes: Axes) -> None:
    """Axes in front of and behind the gathered one are tied; a constant vector picks positions."""
    x, indices, y = node.inputs[0], node.inputs[1], node.outputs[0]
    count, depth = rank(x), rank(indices)
    if x is None or not count or depth is None or rank(y) != count - 1 + depth:
        return
    axis = node.attributes.get_int("axis", 0) % count
    for place in range(count):
        if place != axis:
            axes.tie((x, place), (y, place if place < axis else place - 1 + depth))
    picked, size = constant(indices), axes.size((x, axis))
    if picked is None or size is None or depth != 1 or axes.size((y, axis)) != len(picked):
        return
    axes.tie_positions((y, axis), np.arange(len(picked)), (x, axis), picked % size)


@CUTS("Gather")
def _cut_gather(node: ir.Node, cut: Cut) -> None:
    x, indices, y = node.inputs[0], node.inputs[1], node.outputs[0]
    axis = node.attributes.get_int("axis", 0) % (rank(x) or 1)
    kept = cut.kept(x, axis)
    picked = constant(indices)
    if kept is None or picked is None:
        return
    moved = np.cumsum(kept) - 1
    staying = cut.kept(y, axis)
    chosen = picked if staying is None else picked[staying]
    cut.set_input(node, 1, moved[chosen % len(kept)].astype(picked.dtype))
