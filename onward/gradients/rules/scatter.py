"""Gradients of scatter operators.

Each operator defines how to read and how to write at its positions; the gradients depend only on
the reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps, Size, rank
from onward.gradients.rule import GradientTable
from onward.gradients.rules.zeros import Zeros
from onward.passes.value_facts import attribute, input_of

gradient = GradientTable()

Read = Callable[[ir.Value], ir.Value]  # x -> x at the positions
Write = Callable[[ir.Value, ir.Value, str], ir.Value]  # (x, updates, reduction) -> y


@gradient("Scatter", "ScatterElements")
def scatter_elements(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y[indices[i, j], j] = f(x[indices[i, j], j], updates[i, j]) (axis 0)"""
    indices, axis = node.inputs[1], attribute(node, "axis")

    def read(x: ir.Value) -> ir.Value:
        return op.GatherElements(x, indices, axis=axis)

    def write(x: ir.Value, updates: ir.Value, reduction: str) -> ir.Value:
        return op.ScatterElements(x, indices, updates, axis=axis, reduction=reduction)

    return _scattered(op, node, dy, read, write)


@gradient("ScatterND")
def scatter_nd(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y[indices[i]] = f(x[indices[i]], updates[i])"""
    indices = node.inputs[1]

    def read(x: ir.Value) -> ir.Value:
        return op.GatherND(x, indices)

    def write(x: ir.Value, updates: ir.Value, reduction: str) -> ir.Value:
        return op.ScatterND(x, indices, updates, reduction=reduction)

    return _scattered(op, node, dy, read, write)


def _scattered(op: GradientOps, node: ir.Node, dy: ir.Value, read: Read, write: Write) -> Any:
    """The gradients of x and of the updates."""
    updates, reduction = node.inputs[2], attribute(node, "reduction", "none")
    assert updates is not None
    if reduction == "none":
        return write(dy, op.zeros_like(updates), "none"), None, read(dy)
    if reduction == "add":
        return dy, None, read(dy)
    rule = _multiplied if reduction == "mul" else _extreme
    return rule(op, node, dy, read, write)


def _multiplied(op: GradientOps, node: ir.Node, dy: ir.Value, read: Read, write: Write) -> Any:
    """y = x times the updates there: dx = dy times them, and each one's dy times all the others."""
    x, _, updates = node.inputs
    assert x is not None and updates is not None
    parts = Zeros(op, updates)
    product = op.Mul(dy, write(x, parts.factors, "mul"))
    nothing = op.zeros_like(x)
    others = (
        op.Sub(read(write(nothing, each, "add")), each) for each in (parts.flags, parts.zeros)
    )
    dx = op.Mul(dy, write(op.filled_like(x, 1.0), updates, "mul"))
    return dx, None, op.Mul(parts.product(*others), op.Div(read(product), parts.factors))


def _extreme(op: GradientOps, node: ir.Node, dy: ir.Value, read: Read, write: Write) -> Any:
    """dy for the elements of x and the updates that equal y, divided among equal ones."""
    (x, _, updates), (y,) = node.inputs, node.outputs
    kept = op.cast_like(op.Equal(x, y), y)
    taken = op.cast_like(op.Equal(updates, read(y)), y)
    share = op.Div(dy, write(kept, taken, "add"))
    return op.Mul(share, kept), None, op.Mul(read(share), taken)


@gradient("TensorScatter")
def tensor_scatter(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dpast = dy with zeros where the update was written, dupdate = dy from there"""
    past, update = node.inputs[:2]
    start, axis = input_of(node, 2), attribute(node, "axis")
    assert past is not None and update is not None
    axis = axis % rank(past)
    zeros = op.zeros_like(update)
    dpast = op.TensorScatter(dy, zeros, start, axis=axis, mode=attribute(node, "mode"))
    places = op.Unsqueeze(op.arange(op.size(update, axis)), [0])  # (1 or batch, time)
    if start is not None:
        places = op.Add(op.Unsqueeze(start, [1]), places)
    if attribute(node, "mode") == "circular":
        places = op.Mod(places, op.shape(op.size(past, axis)))
    between = [a for a in range(1, rank(past)) if a != axis]
    full: list[Size] = op.sizes(update)
    index = op.Expand(op.Unsqueeze(places, between), op.shape(*full))
    return dpast, op.GatherElements(dy, index, axis=axis)
