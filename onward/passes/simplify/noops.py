"""Nodes that do nothing: the value goes on as it came."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import (
    attribute,
    constant,
    dims,
    fits_within,
    input_of,
    ints,
    made_by,
    rank,
    same_shape,
    scalar,
    static,
)

rule = Rules()

_END = np.iinfo(np.int32).max  # from here on, a slice's end means "to the end"


@rule("Identity")
def identity(op: Ops, node: ir.Node) -> Replacement:
    """Identity(x) = x; where both are outputs or x comes from outside, a copy must stay."""
    (x,), (y,) = node.inputs, node.outputs
    if x is None:
        return None
    maker = x.producer()
    movable = maker is not None and maker.graph is node.graph and not x.is_graph_output()
    return None if y.is_graph_output() and not movable else x


@rule("Dropout")
def dropout(op: Ops, node: ir.Node) -> Replacement:
    """Outside training it is the identity; the mask, if anybody wants it, keeps the node."""
    training = input_of(node, 2)
    if len(node.outputs) > 1 or (training is not None and scalar(training) != 0):
        return None
    return node.inputs[0]


@rule("Add", "Sub", "Or", "Xor")
def zero(op: Ops, node: ir.Node) -> Replacement:
    """x + 0, 0 + x, x - 0, x or false."""
    return _neutral(node, 0, both_sides=node.op_type != "Sub")


@rule("Mul", "Div", "Pow", "And")
def one(op: Ops, node: ir.Node) -> Replacement:
    """x * 1, 1 * x, x / 1, x ** 1, x and true."""
    return _neutral(node, 1, both_sides=node.op_type in ("Mul", "And"))


def _neutral(node: ir.Node, number: int, *, both_sides: bool) -> Replacement:
    a, b = node.inputs
    for x, other in [(a, b), (b, a)] if both_sides else [(a, b)]:
        array = constant(other)
        if array is None or not array.size or not bool((array == number).all()):
            continue
        if x is not None and x.dtype == node.outputs[0].dtype and fits_within(other, x):
            return x
    return None


@rule("Cast")
def cast(op: Ops, node: ir.Node) -> Replacement:
    """A cast to the type that x has."""
    (x,) = node.inputs
    return x if x is not None and x.dtype == attribute(node, "to") else None


@rule("Reshape", "Expand", "Squeeze", "Unsqueeze", "Flatten")
def reshape(op: Ops, node: ir.Node) -> Replacement:
    """A reshape to the shape that x has."""
    x, y = node.inputs[0], node.outputs[0]
    if same_shape(x, y) and not y.is_graph_output():  # what an output declares is not proven
        return x
    return None


@rule("Expand")
def expand(op: Ops, node: ir.Node) -> Replacement:
    """Expand to ones: nothing to broadcast to."""
    x, shape = node.inputs
    sizes, depth = ints(shape), rank(x)
    if sizes is None or depth is None or len(sizes) > depth:
        return None
    known = (dims(x) or ())[depth - len(sizes) :]
    return x if all(n == 1 or n == d for n, d in zip(sizes, known)) else None


@rule("Tile")
def tile(op: Ops, node: ir.Node) -> Replacement:
    """Every axis once."""
    x, repeats = node.inputs
    times = ints(repeats)
    return x if times is not None and all(n == 1 for n in times) else None


@rule("Pad")
def pad(op: Ops, node: ir.Node) -> Replacement:
    """No padding at all."""
    pads = ints(node.inputs[1])
    return node.inputs[0] if pads is not None and not any(pads) else None


@rule("Slice")
def slice_(op: Ops, node: ir.Node) -> Replacement:
    """From 0 to the end, in steps of 1."""
    x = node.inputs[0]
    starts, ends, steps = ints(node.inputs[1]), ints(node.inputs[2]), ints(input_of(node, 4))
    if starts is None or ends is None or (steps is None and input_of(node, 4) is not None):
        return None
    if any(starts) or any(step != 1 for step in steps or []):
        return None
    axes = ints(input_of(node, 3)) if input_of(node, 3) is not None else list(range(len(ends)))
    shape = dims(x)
    if axes is None:
        return None
    for axis, end in zip(axes, ends):
        size = shape[axis] if shape is not None else None
        if end < _END and not (isinstance(size, int) and end >= size):
            return None
    return x


@rule("Transpose")
def transpose(op: Ops, node: ir.Node) -> Replacement:
    """The axes in their own order."""
    order, depth = attribute(node, "perm"), rank(node.inputs[0])
    if order is None:
        return node.inputs[0] if depth is not None and depth <= 1 else None
    return node.inputs[0] if list(order) == list(range(len(order))) else None


@rule("Concat", "Max", "Min", "Sum", "Mean")
def alone(op: Ops, node: ir.Node) -> Replacement:
    """Of one input only."""
    return node.inputs[0] if len(node.inputs) == 1 else None


@rule("Concat")
def empty_parts(op: Ops, node: ir.Node) -> Replacement:
    """Parts without elements along the axis add nothing."""
    axis = attribute(node, "axis")
    kept = []
    for value in node.inputs:
        shape = dims(value)
        if shape is None or shape[axis] != 0:
            kept.append(value)
    if not kept or len(kept) == len(node.inputs):
        return None
    return op.Concat(*kept, axis=axis)


@rule("Split")
def one_part(op: Ops, node: ir.Node) -> Replacement:
    """Into one part."""
    return node.inputs[0] if len(node.outputs) == 1 else None


@rule("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")
def reduce_ones(op: Ops, node: ir.Node) -> Replacement:
    """A reduction over axes of size 1 that keeps them, or over none."""
    x, axes, shape = node.inputs[0], ints(input_of(node, 1)), dims(node.inputs[0])
    if not axes or shape is None or not attribute(node, "keepdims", 1):
        return None
    return x if all(shape[axis] == 1 for axis in axes) else None


@rule("Where")
def decided(op: Ops, node: ir.Node) -> Replacement:
    """A constant condition that is everywhere the same."""
    condition, x, y = node.inputs
    array = constant(condition)
    if array is None or not array.size or (array.any() and not array.all()):
        return None
    taken, other = (x, y) if array.all() else (y, x)
    return taken if fits_within(other, taken) and fits_within(condition, taken) else None


@rule("Relu")
def relu_twice(op: Ops, node: ir.Node) -> Replacement:
    """relu(relu(x)) = relu(x)."""
    return node.inputs[0] if made_by(node.inputs[0], "Relu", "Sigmoid") else None


@rule("Neg", "Not")
def undone(op: Ops, node: ir.Node) -> Replacement:
    """-(-x) = x, not not x = x."""
    inner = made_by(node.inputs[0], node.op_type)
    return None if inner is None else inner.inputs[0]


@rule("Gather")
def gather_all(op: Ops, node: ir.Node) -> Replacement:
    """Every index in order."""
    x, indices = node.inputs
    wanted, shape = constant(indices), static(x)
    axis = attribute(node, "axis", 0)
    if wanted is None or wanted.ndim != 1 or shape is None or axis is None:
        return None
    return x if wanted.tolist() == list(range(shape[axis])) else None
