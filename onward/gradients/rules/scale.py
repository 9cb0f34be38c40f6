"""Gradients of normalisations without parameters: by norm, deviation, neighbouring channels."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable
from onward.gradients.rules.norm import wide
from onward.passes.value_facts import attribute

gradient = GradientTable()


@gradient("LpNormalization")
def lp_normalization(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = (dy - s sum(dy y)) / norm, s = y for p = 2 and sign(x) for p = 1; 0 where norm is 0"""
    (x,), (y,) = node.inputs, node.outputs
    assert x is not None
    axes = [attribute(node, "axis")]
    one = attribute(node, "p") == 1
    norm = (op.ReduceL1 if one else op.ReduceL2)(x, axes, keepdims=1)
    along = op.ReduceSum(op.Mul(dy, y), axes, keepdims=1)
    none = op.Equal(norm, 0.0)
    change = op.Sub(dy, op.Mul(op.Sign(x) if one else y, along))
    return op.Where(none, 0.0, op.Div(change, op.Where(none, 1.0, norm)))


@gradient("MeanVarianceNormalization")
def mean_variance_normalization(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = (dy - mean(dy) - y mean(dy y)) / (deviation + 1e-9)"""
    (x,), (y,) = node.inputs, node.outputs
    assert x is not None
    axes = list(attribute(node, "axes"))
    z, y, dy = wide(op, x), wide(op, y), wide(op, dy)
    centred = op.Sub(z, op.ReduceMean(z, axes, keepdims=1))
    deviation = op.Sqrt(op.ReduceMean(op.Mul(centred, centred), axes, keepdims=1))
    first, second = (op.ReduceMean(each, axes, keepdims=1) for each in (dy, op.Mul(dy, y)))
    dx = op.Sub(op.Sub(dy, first), op.Mul(y, second))
    return op.cast_like(op.Div(dx, op.Add(deviation, 1e-9)), x)


@gradient("LRN")
def lrn(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y = x / s^beta, s = bias + alpha mean(x^2) over `size` neighbouring channels:

    dx = dy / s^beta - 2 alpha beta x mean'(dy y / s), mean' over the neighbours that read x
    """
    (x,), (y,) = node.inputs, node.outputs
    assert x is not None
    alpha, beta, bias = (attribute(node, name) for name in ("alpha", "beta", "bias"))
    size = attribute(node, "size")
    before, after = (size - 1) // 2, size // 2
    z, y, dy = wide(op, x), wide(op, y), wide(op, dy)
    mean = _channel_mean(op, op.Mul(z, z), size, before, after)
    s = op.Add(op.Mul(mean, alpha), bias)
    back = _channel_mean(op, op.Div(op.Mul(dy, y), s), size, after, before)
    dx = op.Sub(op.Div(dy, op.Pow(s, beta)), op.Mul(op.Mul(z, back), 2 * alpha * beta))
    return op.cast_like(dx, x)


def _channel_mean(op: GradientOps, x: ir.Value, size: int, before: int, after: int) -> ir.Value:
    """The mean over `size` channels, zeros beyond the ends."""
    rows = op.Reshape(x, op.shape(op.size(x, 0), 1, op.size(x, 1), -1))
    pads = {"pads": [before, 0, after, 0], "count_include_pad": 1}
    return op.reshape_as(op.AveragePool(rows, kernel_shape=[size, 1], **pads), x)
