"""Pruning rules of operators that change shapes: Reshape, Transpose, Expand, Tile, Pad, Shape."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onward.compress.pruning.axes import Axes, Axis, Factor, constant, known_sizes, rank
from onward.compress.pruning.cut import CUTS, Cut
from onward.compress.pruning.rules.elementwise import broadcast
from onward.compress.pruning.rules.reading import given
from onward.graph.operator_table import OpTable

SHAPE = OpTable()
Sizes = list[tuple[int, object]]  # (axis, its size or name); axes of size 1 are left out


# -- the same elements in another shape --------------------------------------------------------


@SHAPE("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(node: ir.Node, axes: Axes) -> None:
    """Match equal axes from the left, then groups of axes with equal products from the right."""
    x, y = node.inputs[0], node.outputs[0]
    if x is None or rank(x) is None or rank(y) is None:
        return
    before, after = _dims(x), _dims(y)
    for left, right in _match(before, after):
        _tie_segment(axes, [(x, axis) for axis in left], [(y, axis) for axis in right])


def _dims(value: ir.Value) -> Sizes:
    sizes = known_sizes(value) or ()
    shape = value.shape if value.const_value is None else sizes
    assert shape is not None
    return [
        (axis, size if size is not None else _name(shape[axis]))
        for axis, size in enumerate(sizes)
        if size != 1
    ]


def _name(dim: object) -> object:
    """The name of a dynamic size; sizes without a name are all different."""
    name = getattr(dim, "value", None)
    return object() if name is None else str(name)


def _match(before: Sizes, after: Sizes) -> list[tuple[list[int], list[int]]]:
    """Shortest sets of neighbouring axes that hold the same elements."""
    found = []
    a, b = list(before), list(after)
    while a and b:  # from the left: the same size, or the same name
        if a[0][1] != b[0][1]:
            break
        found.append(([a.pop(0)[0]], [b.pop(0)[0]]))
    while a and b:  # from the right: equal products of known sizes
        left, right = _equal_products(a, b)
        if not left:
            break
        found.append(([axis for axis, _ in a[-left:]], [axis for axis, _ in b[-right:]]))
        del a[-left:], b[-right:]
    if a and b:
        found.append(([axis for axis, _ in a], [axis for axis, _ in b]))
    return found


def _equal_products(a: Sizes, b: Sizes) -> tuple[int, int]:
    """How many of the last axes of both have the same product; (0, 0) if it is not known."""
    left = right = 0
    p = q = 1
    while p != q or not left or not right:
        take_left = (p <= q and left < len(a)) or right == len(b)
        side, count = (a, left) if take_left else (b, right)
        if count == len(side):
            return 0, 0
        size = side[-1 - count][1]
        if not isinstance(size, int):
            return 0, 0
        if take_left:
            p, left = p * size, left + 1
        else:
            q, right = q * size, right + 1
    return left, right


def _tie_segment(axes: Axes, left: list[Axis], right: list[Axis]) -> None:
    """Tie axes that hold the same elements: one by one, or by a factor."""
    if len(left) == len(right) == 1 and axes.size(left[0]) == axes.size(right[0]):
        axes.tie(left[0], right[0])
        return
    choices = list(_factors(axes, left, right))
    if choices:
        axes.tie_factor(*choices)


def _factors(axes: Axes, left: list[Axis], right: list[Axis]) -> Iterator[Factor]:
    """Possible ties: as the outermost factor, as an inner one, or as the innermost."""
    pairs: list[tuple[Axis, Axis, int | None]] = [
        (left[0], right[0], None)
    ]  # the outermost factor works with unknown inner sizes
    sizes = [axes.size(each) for each in (*left, *right)]
    if None not in sizes:
        whole, parts = (left, right) if len(left) == 1 else (right, left)
        behind = [
            math.prod(axes.size(each) or 1 for each in parts[n:]) for n in range(1, len(parts))
        ]
        if len(whole) == 1:
            pairs += [(whole[0], each, block) for each, block in zip(parts[1:], [*behind[1:], 1])]
        else:
            pairs.append((left[-1], right[-1], 1))
    for a, b, block in pairs:
        n, m = axes.size(a), axes.size(b)
        if n and m and max(n, m) % min(n, m) == 0:
            large, small = (a, b) if n >= m else (b, a)
            others = tuple(each for each in (*left, *right) if each not in (a, b))
            yield Factor(large, small, block or max(n, m) // min(n, m), others)


@CUTS("Reshape", "Expand")
def _cut_reshape(node: ir.Node, cut: Cut) -> None:
    if changed := cut.changed(node.outputs[0]):
        cut.fix_sizes(node, 1, changed)


@CUTS("Flatten", "Squeeze", "Unsqueeze")
def _follows(node: ir.Node, cut: Cut) -> None:
    """The sizes follow the input's."""


@SHAPE("Shape")
def _shape(node: ir.Node, axes: Axes) -> None:
    """Reads no positions: the sizes that it returns stay those of the original."""
    x = node.inputs[0]
    for place in range(rank(x) or 0):
        assert x is not None
        axes.free((x, place))


@CUTS("Shape")
def _cut_shape(node: ir.Node, cut: Cut) -> None:
    x = node.inputs[0]
    if x is None:
        return
    sizes = known_sizes(x) or ()
    start = node.attributes.get_int("start", 0)
    first = max(start + len(sizes), 0) if start < 0 else start
    count = axes_count(node, len(sizes), first)
    changed = {
        axis - first: int(sizes[axis] or 0)
        for axis in cut.changed(x)
        if first <= axis < first + count
    }
    if changed:
        cut.fix_result(node, changed)


def axes_count(node: ir.Node, rank: int, first: int) -> int:
    """How many sizes a Shape node returns."""
    end = node.attributes.get_int("end", rank)
    end = max(end + rank, 0) if end < 0 else min(end, rank)
    return max(end - first, 0)


@SHAPE("Expand")
def _expand(node: ir.Node, axes: Axes) -> None:
    x, y = node.inputs[0], node.outputs[0]
    if x is None or rank(y) is None:
        return
    broadcast(axes, x, y)
    for place in range(rank(y) or 0):
        axes.free((y, place))


@SHAPE("ConstantOfShape")
def _filled(node: ir.Node, axes: Axes) -> None:
    y = node.outputs[0]
    for place in range(rank(y) or 0):
        axes.free((y, place))


@CUTS("ConstantOfShape")
def _cut_filled(node: ir.Node, cut: Cut) -> None:
    if changed := cut.changed(node.outputs[0]):
        cut.fix_sizes(node, 0, changed)


@SHAPE("Transpose")
def _transpose(node: ir.Node, axes: Axes) -> None:
    x, y = node.inputs[0], node.outputs[0]
    count = rank(x)
    if x is None or count is None or rank(y) != count:
        return
    order = list(node.attributes.get_ints("perm", range(count - 1, -1, -1)))
    for place, source in enumerate(order):
        axes.tie((x, source), (y, place))


@SHAPE("Tile")
def _tile(node: ir.Node, axes: Axes) -> None:
    repeats, x, y = constant(given(node, 1)), node.inputs[0], node.outputs[0]
    if repeats is None or x is None or rank(x) is None or rank(x) != rank(y):
        return
    for axis, count in enumerate(repeats.reshape(-1).tolist()):
        if count == 1:
            axes.tie((x, axis), (y, axis))


@SHAPE("Pad")
def _pad(node: ir.Node, axes: Axes) -> None:
    """Axes that are not padded are tied."""
    x, y, pads = node.inputs[0], node.outputs[0], constant(given(node, 1))
    count = rank(x)
    if x is None or not count or pads is None or rank(y) != count:
        return
    listed = constant(given(node, 3)) if given(node, 3) is not None else np.arange(count)
    if listed is None:
        return
    around = pads.reshape(2, -1)
    padded = {
        int(axis) % count for place, axis in enumerate(listed.tolist()) if around[:, place].any()
    }
    for axis in range(count):
        if axis not in padded:
            axes.tie((x, axis), (y, axis))
