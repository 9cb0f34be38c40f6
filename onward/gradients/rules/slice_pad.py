"""Gradients of slices and pads: each is the gradient of the other."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps, Size, rank
from onward.gradients.rule import GradientTable
from onward.gradients.rules.index import scatter_add
from onward.gradients.rules.shape import elements
from onward.passes.value_facts import attribute, input_of, ints

gradient = GradientTable()

_BEFORE_ALL = -(2**62)  # the end of a backward slice that includes the first element
_LONGEST_STEP = 64  # along an axis of unknown size


@gradient("Slice")
def slice_(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy where it was cut out, zeros around it and between its steps"""
    x = node.inputs[0]
    assert x is not None
    known = _axes_and_steps(node)
    if known is None or _has_huge_steps(x, *known):
        return _by_position(op, x, dy, lambda numbers: op.Slice(numbers, *node.inputs[1:]))
    axes, steps = known
    begins: list[Size] = []
    ends: list[Size] = []
    for axis, step, start in zip(axes, steps, elements(op, node.inputs[1], len(axes))):
        size, count = op.size(x, axis), op.size(node.outputs[0], axis)
        if isinstance(size, int):  # a step beyond the end is the same as one to the end
            step = max(-max(size, 1), min(step, max(size, 1)))
        if step < 0:
            dy = op.Slice(dy, [-1], [_BEFORE_ALL], [axis], [-1])
        if abs(step) > 1:
            dy = _with_gaps(op, dy, axis, abs(step))
        begin = _foremost(op, start, size, count, step)
        begins.append(begin)
        ends.append(_plus(op, size, begin, op.product(count, abs(step)), signs=(1, -1, -1)))
    return op.Pad(dy, op.shape(*begins, *ends), None, axes, mode="constant")


def _axes_and_steps(node: ir.Node) -> tuple[list[int], list[int]] | None:
    """Axes and steps as numbers; None: they are known only at run time."""
    starts, axes, steps = node.inputs[1], input_of(node, 3), input_of(node, 4)
    count = None if starts is None or starts.shape is None else starts.shape[0]
    if not isinstance(count, int):
        return None
    known_axes = list(range(count)) if axes is None else ints(axes)
    known_steps = [1] * count if steps is None else ints(steps)
    return None if known_axes is None or known_steps is None else (known_axes, known_steps)


def _has_huge_steps(x: ir.Value, axes: list[int], steps: list[int]) -> bool:
    """Whether zeros between steps could need far more memory than x: TensorFlow steps by 1e9."""
    sizes = [x.shape[axis] if x.shape is not None else None for axis in axes]
    return any(
        abs(step) > _LONGEST_STEP and not isinstance(size, int) for step, size in zip(steps, sizes)
    )


def _foremost(op: GradientOps, start: Size, size: Size, count: Size, step: int) -> Size:
    """The smallest position that is read."""
    if isinstance(start, int) and isinstance(size, int):
        begin: Size = slice(start, None, step).indices(size)[0]
    else:
        at, length = op.shape(start), op.shape(size)
        at = op.Where(op.Less(at, 0), op.Add(at, length), at)
        begin = op.Min(op.Max(at, 0), length if step > 0 else op.Sub(length, 1))
    if step > 0:
        return begin
    last = _plus(op, begin, op.product(count, step), -step)
    if isinstance(last, int) and isinstance(size, int):
        return min(max(last, 0), size)
    return op.Min(op.Max(op.shape(last), 0), op.shape(size))


def _plus(op: GradientOps, *sizes: Size, signs: tuple[int, ...] = (1, 1, 1)) -> Size:
    """The sum of sizes, each with its sign."""
    if all(isinstance(size, int) for size in sizes):
        return sum(sign * size for sign, size in zip(signs, sizes))
    first, *rest = (op.shape(size) for size in sizes)
    for sign, size in zip(signs[1:], rest):
        first = op.Add(first, size) if sign > 0 else op.Sub(first, size)
    return first


def _with_gaps(op: GradientOps, dy: ir.Value, axis: int, step: int) -> ir.Value:
    """(n) -> (n, 1) -> (n, step), zeros behind each element -> (n step)"""
    axis = axis % rank(dy)
    sizes = op.sizes(dy)
    sizes[axis] = op.product(sizes[axis], step)
    spaced = op.Pad(op.Unsqueeze(dy, [axis + 1]), [0, step - 1], None, [axis + 1], mode="constant")
    return op.Reshape(spaced, op.shape(*sizes), allowzero=1)


def _by_position(op: GradientOps, x: ir.Value, dy: ir.Value, move: Any) -> ir.Value:
    """Slice or pad the indices of x's elements in the same way: they are the positions of dy."""
    count = op.product(*op.sizes(x))
    numbers = move(op.Reshape(op.arange(count), op.shape_of(x), allowzero=1))
    places, flat = op.Reshape(numbers, [-1]), op.Reshape(dy, [-1])
    return op.reshape_as(scatter_add(op, [count], places, flat, 0), x)


@gradient("Pad")
def pad(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy cut back, and zeros where x was cut; dvalue = the sum of dy outside"""
    x, pads = node.inputs[:2]
    assert x is not None
    value, axes = input_of(node, 2), input_of(node, 3)
    if attribute(node, "mode") != "constant":
        return _pad_with_itself(op, node, dy)
    dx = op.Pad(dy, op.Neg(pads), None, axes, mode="constant")
    if value is None:
        return dx
    outside = op.Pad(op.zeros_like(x), pads, op.number_like(1.0, x), axes, mode="constant")
    return dx, None, op.sum_to(op.Mul(dy, outside), value)


def _pad_with_itself(op: GradientOps, node: ir.Node, dy: ir.Value) -> ir.Value:
    """For each axis, y is x at padded positions of the same mode: dy is added there."""
    x, pads, axes, mode = node.inputs[0], node.inputs[1], input_of(node, 3), attribute(node, "mode")
    assert x is not None
    known = list(range(rank(x))) if axes is None else ints(axes)
    if known is None:
        return _by_position(op, x, dy, lambda numbers: op.Pad(numbers, pads, None, axes, mode=mode))
    sides = elements(op, pads, 2 * len(known))
    sizes = op.sizes(node.outputs[0])
    for axis, begin, end in zip(known, sides, sides[len(known) :]):
        if begin == 0 and end == 0:
            continue
        sizes[axis] = op.size(x, axis)
        places = op.Pad(op.arange(sizes[axis]), op.shape(begin, end), mode=mode)
        dy = scatter_add(op, sizes, places, dy, axis)
    return dy


@gradient("CenterCropPad")
def center_crop_pad(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy padded or cropped to x's sizes, around the same centre"""
    x = node.inputs[0]
    assert x is not None
    axes = attribute(node, "axes")
    if axes is None:
        return op.CenterCropPad(dy, op.shape_of(x))
    return op.CenterCropPad(dy, op.shape(*(op.size(x, axis) for axis in axes)), axes=list(axes))
