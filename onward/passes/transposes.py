"""Move Transposes towards the outputs until two of them cancel.

Models in NHWC layout (TensorFlow's) have a Transpose on each side of every convolution. One that
moves through the nodes between two convolutions meets its inverse at the second.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onward.graph.operators import ELEMENTWISE, REDUCTIONS
from onward.passes.drop_unused import drop_unused
from onward.passes.rewrite import Ops, Replacement, Rules, nodes_of, rewrite
from onward.passes.simplify import consecutive_nodes, noops
from onward.passes.simplify.consecutive_nodes import order_of
from onward.passes.value_facts import (
    Array,
    attribute,
    constant,
    input_of,
    ints,
    made_by,
    rank,
)

rule = Rules()


def sink_transposes(model: ir.Model) -> ir.Model:
    """Move every Transpose towards the outputs; keep the result if fewer are left."""
    before = _count(model)
    if before < 2:
        return model
    tried = model.clone()
    rewrite(tried, rule | noops.rule | consecutive_nodes.rule)
    drop_unused(tried)
    return tried if _count(tried) < before else model


def _count(model: ir.Model) -> int:
    return sum(node.op_type == "Transpose" for node in nodes_of(model))


def _before_transpose(value: ir.Value | None) -> tuple[ir.Value, list[int]] | None:
    """The input of the Transpose that makes a value, and its permutation."""
    node = made_by(value, "Transpose")
    order = None if node is None else order_of(node)
    if node is None or order is None or node.inputs[0] is None:
        return None
    return node.inputs[0], order


def _transpose(op: Ops, y: ir.Value, order: list[int]) -> ir.Value:
    return op.Transpose(y, perm=order)


@rule(*ELEMENTWISE)
def elementwise(op: Ops, node: ir.Node) -> Replacement:
    """f(transpose(a), transpose(b)) = transpose(f(a, b)); constants are transposed inversely."""
    orders = [found[1] for found in map(_before_transpose, node.inputs) if found is not None]
    if not orders or any(order != orders[0] for order in orders) or len(node.outputs) > 1:
        return None
    order = orders[0]
    operands: list[ir.Value | None] = []
    for value in node.inputs:
        found = _before_transpose(value)
        if found is not None:
            operands.append(found[0])
            continue
        operand = value if value is None else _untransposed(op, value, order)
        if value is not None and operand is None:
            return None
        operands.append(operand)
    y = op.one(node.op_type, *operands, **node.attributes)
    return _transpose(op, y, order)


def _untransposed(op: Ops, value: ir.Value, order: list[int]) -> ir.Value | None:
    """A constant (or a scalar) whose transpose is the given one."""
    if rank(value) == 0:
        return value
    array = constant(value)
    if array is None or array.ndim > len(order):
        return None
    if array.size == 1:
        return value
    full = array.reshape((1,) * (len(order) - array.ndim) + array.shape)
    return op.constant(np.ascontiguousarray(full.transpose(np.argsort(order))))


@rule("Softmax", "LogSoftmax", "Hardmax")
def along_axis(op: Ops, node: ir.Node) -> Replacement:
    """softmax(transpose(x), axis) = transpose(softmax(x, order[axis]))."""
    found = _before_transpose(node.inputs[0])
    if found is None:
        return None
    x, order = found
    attributes = {**node.attributes, "axis": order[attribute(node, "axis", -1)]}
    return _transpose(op, op.one(node.op_type, x, **attributes), order)


@rule("Concat")
def concat(op: Ops, node: ir.Node) -> Replacement:
    """concat(transpose(a), transpose(b)) = transpose(concat(a, b))."""
    found = [_before_transpose(value) for value in node.inputs]
    orders = [each[1] for each in found if each is not None]
    if len(orders) != len(found) or any(order != orders[0] for order in orders):
        return None
    axis = orders[0][attribute(node, "axis")]
    return _transpose(op, op.Concat(*[each[0] for each in found if each], axis=axis), orders[0])


@rule("Split")
def split(op: Ops, node: ir.Node) -> Replacement:
    """Each part of split(transpose(x)) is the transpose of a part."""
    found = _before_transpose(node.inputs[0])
    if found is None or len(node.outputs) < 2:
        return None
    x, order = found
    attributes = {**node.attributes, "axis": order[attribute(node, "axis", 0)]}
    parts = op.many("Split", len(node.outputs), x, *node.inputs[1:], **attributes)
    return [_transpose(op, part, order) for part in parts]


@rule(*REDUCTIONS)
def reduce(op: Ops, node: ir.Node) -> Replacement:
    """reduce(transpose(x), axes) = transpose(reduce(x, order[axes]))"""
    found, axes = _before_transpose(node.inputs[0]), ints(input_of(node, 1))
    if found is None or not axes:
        return None
    x, order = found
    gone = sorted(order[axis] for axis in axes)
    y = op.one(node.op_type, x, gone, **node.attributes)
    if attribute(node, "keepdims", 1):
        return _transpose(op, y, order)
    left = [axis for axis in order if axis not in gone]
    renumbered = [sorted(left).index(axis) for axis in left]
    return y if renumbered == sorted(renumbered) else _transpose(op, y, renumbered)


@rule("ArgMax", "ArgMin")
def arg_max(op: Ops, node: ir.Node) -> Replacement:
    """argmax(transpose(x), axis) = transpose(argmax(x, order[axis])), if keepdims"""
    found = _before_transpose(node.inputs[0])
    if found is None or not attribute(node, "keepdims", 1):
        return None
    x, order = found
    attributes = {**node.attributes, "axis": order[attribute(node, "axis", 0)]}
    return _transpose(op, op.one(node.op_type, x, **attributes), order)


@rule("Pad")
def pad(op: Ops, node: ir.Node) -> Replacement:
    """pad(transpose(x), pads) = transpose(pad(x, inversely permuted pads))"""
    return _per_axis(op, node, 1, _both_ends)


@rule("Tile")
def tile(op: Ops, node: ir.Node) -> Replacement:
    """tile(transpose(x), repeats) = transpose(tile(x, inversely permuted repeats))"""
    return _per_axis(op, node, 1, _one_end)


@rule("Resize")
def resize(op: Ops, node: ir.Node) -> Replacement:
    """resize(transpose(x), sizes) = transpose(resize(x, inversely permuted sizes)), or scales"""
    if input_of(node, 1) is not None or "axes" in node.attributes:
        return None
    index = 2 if input_of(node, 2) is not None else 3
    return _per_axis(op, node, index, _one_end)


def _per_axis(
    op: Ops, node: ir.Node, index: int, move: Callable[[Array, list[int]], Array]
) -> Replacement:
    """Permute a constant input that has a number for each axis."""
    found, numbers = _before_transpose(node.inputs[0]), constant(input_of(node, index))
    if (
        found is None
        or numbers is None
        or (node.op_type == "Pad" and input_of(node, 3) is not None)
    ):
        return None
    x, order = found
    if numbers.size % len(order):
        return None
    inputs = list(node.inputs)
    inputs[0], inputs[index] = x, op.constant(move(numbers, order))
    return _transpose(op, op.one(node.op_type, *inputs, **node.attributes), order)


def _one_end(numbers: Array, order: list[int]) -> Array:
    return np.ascontiguousarray(numbers[np.argsort(order)])


def _both_ends(pads: Array, order: list[int]) -> Array:
    return np.ascontiguousarray(pads.reshape(2, -1)[:, np.argsort(order)].reshape(-1))


@rule("Slice")
def slice_(op: Ops, node: ir.Node) -> Replacement:
    """slice(transpose(x), axes) = transpose(slice(x, order[axes]))"""
    found, axes = _before_transpose(node.inputs[0]), input_of(node, 3)
    named = ints(axes) if axes is not None else None
    if found is None or named is None:
        return None
    x, order = found
    inputs = [x, *node.inputs[1:3], np.asarray([order[axis] for axis in named], np.int64)]
    return _transpose(op, op.Slice(*inputs, *node.inputs[4:]), order)


@rule("QuantizeLinear", "DequantizeLinear")
def quantize(op: Ops, node: ir.Node) -> Replacement:
    """quantize(transpose(x), axis) = transpose(quantize(x, order[axis])); one scale has no axis"""
    found = _before_transpose(node.inputs[0])
    if found is None or attribute(node, "block_size", 0):
        return None
    x, order = found
    attributes = dict(node.attributes)
    if rank(node.inputs[1]) != 0:
        attributes["axis"] = ir.AttrInt64("axis", order[attribute(node, "axis", 1)])
    return _transpose(op, op.one(node.op_type, x, *node.inputs[1:], **attributes), order)
