"""Rules that remove nodes which do nothing."""

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
    """identity(x) = x, unless y is an output and x is one too, or from another graph."""
    (x,), (y,) = node.inputs, node.outputs
    if x is None:
        return None
    maker = x.producer()
    movable = maker is not None and maker.graph is node.graph and not x.is_graph_output()
    return None if y.is_graph_output() and not movable else x


@rule("Dropout")
def dropout(op: Ops, node: ir.Node) -> Replacement:
    """dropout(x) = x, if it is not in training mode and its mask is unused"""
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


@rule("Conv", "ConvTranspose", "Gemm")
def zero_bias(op: Ops, node: ir.Node) -> Replacement:
    """conv(x, w, 0) = conv(x, w): torch's exporter writes zeros where a layer has no bias"""
    array = constant(input_of(node, 2))
    if array is None or array.any():
        return None
    return op.one(node.op_type, *node.inputs[:2], **node.attributes)


@rule("Cast")
def cast(op: Ops, node: ir.Node) -> Replacement:
    """cast(x, x's type) = x"""
    (x,) = node.inputs
    return x if x is not None and x.dtype == attribute(node, "to") else None


@rule("Reshape", "Expand", "Squeeze", "Unsqueeze", "Flatten")
def reshape(op: Ops, node: ir.Node) -> Replacement:
    """reshape(x, x's shape) = x"""
    x, y = node.inputs[0], node.outputs[0]
    if same_shape(x, y) and not y.is_graph_output():  # a declared shape may be wrong
        return x
    return None


@rule("Expand")
def expand(op: Ops, node: ir.Node) -> Replacement:
    """expand(x, sizes) = x, if every size is 1 or x's"""
    x, shape = node.inputs
    sizes, depth = ints(shape), rank(x)
    if sizes is None or depth is None or len(sizes) > depth:
        return None
    known = (dims(x) or ())[depth - len(sizes) :]
    return x if all(n == 1 or n == d for n, d in zip(sizes, known)) else None


@rule("Tile")
def tile(op: Ops, node: ir.Node) -> Replacement:
    """tile(x, ones) = x"""
    x, repeats = node.inputs
    times = ints(repeats)
    return x if times is not None and all(n == 1 for n in times) else None


@rule("Pad")
def pad(op: Ops, node: ir.Node) -> Replacement:
    """pad(x, zeros) = x"""
    pads = ints(node.inputs[1])
    return node.inputs[0] if pads is not None and not any(pads) else None


@rule("Slice")
def slice_(op: Ops, node: ir.Node) -> Replacement:
    """slice(x, 0, end, step 1) = x"""
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
    """transpose(x, 0, 1, ..., n) = x"""
    order, depth = attribute(node, "perm"), rank(node.inputs[0])
    if order is None:
        return node.inputs[0] if depth is not None and depth <= 1 else None
    return node.inputs[0] if list(order) == list(range(len(order))) else None


@rule("Concat", "Max", "Min", "Sum", "Mean")
def single_input(op: Ops, node: ir.Node) -> Replacement:
    """concat(x) = x, max(x) = x, sum(x) = x, ..., of one input"""
    return node.inputs[0] if len(node.inputs) == 1 else None


@rule("Concat")
def empty_parts(op: Ops, node: ir.Node) -> Replacement:
    """Remove the inputs of a Concat that have no elements."""
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
    """split(x) = x, into one part"""
    return node.inputs[0] if len(node.outputs) == 1 else None


@rule("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")
def reduce_ones(op: Ops, node: ir.Node) -> Replacement:
    """reduce(x, axes) = x, over axes of size 1 that are kept"""
    x, axes, shape = node.inputs[0], ints(input_of(node, 1)), dims(node.inputs[0])
    if not axes or shape is None or not attribute(node, "keepdims", 1):
        return None
    return x if all(shape[axis] == 1 for axis in axes) else None


@rule("Where")
def constant_condition(op: Ops, node: ir.Node) -> Replacement:
    """where(true, x, y) = x, where(false, x, y) = y"""
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
def double_negation(op: Ops, node: ir.Node) -> Replacement:
    """-(-x) = x, not not x = x."""
    inner = made_by(node.inputs[0], node.op_type)
    return None if inner is None else inner.inputs[0]


@rule("Gather")
def gather_all(op: Ops, node: ir.Node) -> Replacement:
    """gather(x, [0, 1, ..., n - 1]) = x"""
    x, indices = node.inputs
    wanted, shape = constant(indices), static(x)
    axis = attribute(node, "axis", 0)
    if wanted is None or wanted.ndim != 1 or shape is None or axis is None:
        return None
    return x if wanted.tolist() == list(range(shape[axis])) else None
