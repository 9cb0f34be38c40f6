"""Straight-through gradients of quantization: rounding is the identity, clipping is not.

So a model with QuantizeLinear and DequantizeLinear can be trained as it will run (quantization-
aware training). Quantized tensors carry the gradient of their number of steps; the scale is trained
too (learned step size).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps, Size, rank
from onward.gradients.rule import GradientTable
from onward.passes.composites import DOMAIN
from onward.passes.fake_quantization import NAME
from onward.passes.value_facts import attribute, input_of

gradient = GradientTable()


@gradient(NAME, domain=DOMAIN)
def round_to_grid(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y = clip(round(x), low, high): dx = dy where nothing was clipped"""
    x = node.inputs[0]
    return op.Where(op.Equal(op.Round(x), node.outputs[0]), dy, 0.0)


@gradient("QuantizeLinear")
def quantize_linear(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y = clip(round(x / s) + z): dx = dy / s and ds = -dy x / s^2 where nothing was clipped"""
    x, scale = node.inputs[0], node.inputs[1]
    assert x is not None and scale is not None
    s = _spread(op, node, op.cast_like(scale, x), x)
    steps = op.Div(x, s)
    low, high = _range(node.outputs[0])
    zero = input_of(node, 2)
    if zero is not None:
        steps = op.Add(steps, _spread(op, node, op.cast_like(zero, x), x))
    inside = op.And(op.GreaterOrEqual(steps, low), op.LessOrEqual(steps, high))
    dq = op.Where(inside, op.cast_like(dy, x), 0.0)
    dx = op.Div(dq, s)
    ds = _gather(op, node, op.Neg(op.Div(op.Mul(dx, x), s)), x, scale)
    return dx, op.cast_like(ds, scale)


@gradient("DequantizeLinear")
def dequantize_linear(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y = (x - z) s: dx = dy s, ds = dy (x - z)"""
    x, scale = node.inputs[0], node.inputs[1]
    assert x is not None and scale is not None
    s = _spread(op, node, op.cast_like(scale, dy), x)
    steps, zero = op.cast_like(x, dy), input_of(node, 2)
    if zero is not None:
        steps = op.Sub(steps, _spread(op, node, op.cast_like(zero, dy), x))
    ds = _gather(op, node, op.Mul(dy, steps), x, scale)
    return op.Mul(dy, s), op.cast_like(ds, scale)


@gradient("DynamicQuantizeLinear")
def dynamic_quantize_linear(op: GradientOps, node: ir.Node, *dys: ir.Value) -> Any:
    """dx = dy / s: the range is the data's own, nothing is clipped"""
    (x,) = node.inputs
    assert x is not None
    return op.Div(op.cast_like(dys[0], x), node.outputs[1])


def _range(y: ir.Value) -> tuple[float, float]:
    """The smallest and the largest number of the quantized type."""
    assert y.dtype is not None
    if y.dtype.is_integer():
        bits, signed = y.dtype.bitwidth, y.dtype.is_signed()
        return (
            (-float(1 << bits - 1), float((1 << bits - 1) - 1))
            if signed
            else (0.0, float((1 << bits) - 1))
        )
    most = float(ir.DataType(y.dtype).max)
    return -most, most


def _spread(op: GradientOps, node: ir.Node, value: ir.Value, x: ir.Value) -> ir.Value:
    """A scale or zero point (per tensor, axis or block) that broadcasts over x."""
    if rank(value) == 0 or _is_one(value):
        return value
    axis = attribute(node, "axis", 1) % rank(x)
    block = attribute(node, "block_size", 0)
    if rank(value) == 1 and not block:
        return op.Reshape(value, op.shape(*_along(axis, rank(x), -1)))
    sizes = op.sizes(value)
    wide = op.Expand(
        op.Unsqueeze(value, [axis + 1]), op.shape(*_along(axis + 1, rank(x) + 1, block))
    )
    repeated: list[Size] = [*sizes[:axis], op.product(sizes[axis], block), *sizes[axis + 1 :]]
    whole = op.Reshape(wide, op.shape(*repeated))
    return op.Slice(whole, [0], op.shape(op.size(x, axis)), [axis])


def _gather(op: GradientOps, node: ir.Node, ds: ir.Value, x: ir.Value, scale: ir.Value) -> ir.Value:
    """The reverse of `_spread`: a sum to the scale's shape."""
    axis, block = attribute(node, "axis", 1) % max(1, rank(x)), attribute(node, "block_size", 0)
    if not block or rank(scale) == 0 or _is_one(scale):
        if rank(scale) == 1 and not _is_one(scale):
            axes = [a for a in range(rank(x)) if a != axis]
            return op.ReduceSum(ds, axes, keepdims=0) if axes else ds
        return op.Reshape(op.ReduceSum(ds, keepdims=0), op.shape_of(scale))
    sizes = op.sizes(scale)
    full = op.product(sizes[axis], block)
    missing = op.Sub(op.shape(full), op.shape(op.size(x, axis)))
    padded = op.Pad(ds, op.Concat(np.zeros(1, np.int64), missing, axis=0), None, [axis])
    blocks: list[Size] = [*sizes[:axis], sizes[axis], block, *sizes[axis + 1 :]]
    return op.ReduceSum(op.Reshape(padded, op.shape(*blocks)), [axis + 1], keepdims=0)


def _along(axis: int, axes: int, size: int) -> list[Size]:
    return [size if a == axis else 1 for a in range(axes)]


def _is_one(value: ir.Value) -> bool:
    """Whether a vector has one element, for all of x."""
    return value.shape is not None and list(value.shape) == [1]
