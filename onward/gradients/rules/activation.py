"""Gradients of activation functions.

Masks are factors where possible: in onnxruntime, Mul is faster than Where.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from onward.gradients.functions import composite
from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable, broadcasting
from onward.passes.value_facts import attribute

gradient = GradientTable()


# -- piecewise linear ------------------------------------------------------------------------


@gradient("Relu")
def relu(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy where y > 0, else 0, also of a dy that is infinite: sqrt(relu(x))"""
    (y,) = node.outputs
    return op.Where(op.Greater(y, 0.0), dy, 0.0)


@gradient("LeakyRelu")
def leaky_relu(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy where x > 0, else alpha dy"""
    (x,), alpha = node.inputs, attribute(node, "alpha")
    if 0 <= alpha <= 1:
        return op.Mul(dy, op.Max(op.Sign(x), alpha))
    return op.Where(op.Greater(x, 0.0), dy, op.Mul(dy, alpha))


@gradient("PRelu")
@broadcasting
def prelu(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy where x > 0, else slope dy; dslope = dy min(x, 0)"""
    x, slope = node.inputs
    dx = op.Where(op.Greater(x, 0.0), dy, op.Mul(dy, slope))
    return dx, op.Mul(dy, op.Min(x, 0.0))


@gradient("ThresholdedRelu")
def thresholded_relu(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy where x > alpha, else 0"""
    (x,) = node.inputs
    return op.Where(op.Greater(x, attribute(node, "alpha")), dy, 0.0)


@gradient("Shrink")
def shrink(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy [|x| > lambd]"""
    (x,) = node.inputs
    return op.Mul(dy, op.cast_like(op.Greater(op.Abs(x), attribute(node, "lambd")), dy))


@gradient("HardSigmoid")
def hard_sigmoid(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = alpha dy [0 < y < 1]"""
    (y,) = node.outputs
    inside = op.And(op.Greater(y, 0.0), op.Less(y, 1.0))
    return op.Mul(dy, op.Mul(op.cast_like(inside, dy), attribute(node, "alpha")))


@gradient("HardSwish")
@composite("HardSwishGrad", inputs=1, unread=False)
def hard_swish(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy (x / 3 + 1/2) where |x| < 3, else dy [x > 0]"""
    (x,) = node.inputs
    line = op.Add(op.Mul(x, 1 / 3), 0.5)
    flat = op.Clip(line, 0.0, 1.0)  # where |x| >= 3, the line is beyond 0 .. 1
    return op.Mul(dy, op.Where(op.Less(op.Abs(x), 3.0), line, flat))


# -- exponential -----------------------------------------------------------------------------


@gradient("Elu")
def elu(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy where x > 0, else dy alpha exp(x) = dy (y + alpha)"""
    return _exponential_below(op, node, dy, 1.0, offset=attribute(node, "alpha"))


@gradient("Selu")
def selu(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy gamma where x > 0, else dy gamma alpha exp(x) = dy (y + gamma alpha)"""
    gamma = attribute(node, "gamma")
    return _exponential_below(op, node, dy, gamma, offset=gamma * attribute(node, "alpha"))


def _exponential_below(
    op: GradientOps, node: ir.Node, dy: ir.Value, slope: float, offset: float
) -> Any:
    """dy slope where x > 0, else dy (y + offset)"""
    (x,), (y,) = node.inputs, node.outputs
    return op.Mul(dy, op.Where(op.Greater(x, 0.0), slope, op.Add(y, offset)))


@gradient("Celu")
def celu(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy where x > 0, else dy exp(x / alpha) = dy (y / alpha + 1)"""
    (x,), (y,) = node.inputs, node.outputs
    below = op.Add(op.Div(y, attribute(node, "alpha")), 1.0)
    return op.Mul(dy, op.Where(op.Greater(x, 0.0), 1.0, below))


@gradient("Sigmoid")
def sigmoid(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy y (1 - y)"""
    (y,) = node.outputs
    return op.Mul(dy, op.Mul(y, op.Sub(1.0, y)))


@gradient("Softplus")
def softplus(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy sigmoid(x)"""
    (x,) = node.inputs
    return op.Mul(dy, op.Sigmoid(x))


@gradient("Softsign")
def softsign(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy / (1 + |x|)^2"""
    (x,) = node.inputs
    size = op.Add(op.Abs(x), 1.0)
    return op.Div(dy, op.Mul(size, size))


@gradient("Mish")
@composite("MishGrad", inputs=1, unread=False)
def mish(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y = x t, t = tanh(softplus(x)): dx = dy (t + x (1 - t^2) sigmoid(x))"""
    (x,), (y,) = node.inputs, node.outputs
    t = op.Tanh(op.Softplus(x))
    curve = op.Mul(op.Sub(x, op.Mul(y, t)), op.Sigmoid(x))
    return op.Mul(dy, op.Add(t, curve))


@gradient("Swish")
@composite("SwishGrad", inputs=1, unread=False)
def swish(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy (s + alpha y (1 - s)), s = sigmoid(alpha x)"""
    (x,), (y,) = node.inputs, node.outputs
    alpha = attribute(node, "alpha")
    return op.Mul(dy, _swish_slope(op, op.Sigmoid(op.Mul(x, alpha)), y, alpha))


@gradient("SwiGLU")
def swiglu(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """da = dy b swish'(a), db = dy swish(a)"""
    a, b = node.inputs
    alpha = attribute(node, "alpha")
    gate = op.Sigmoid(op.Mul(a, alpha))
    swished = op.Mul(a, gate)
    da = op.Mul(op.Mul(dy, b), _swish_slope(op, gate, swished, alpha))
    return da, op.Mul(dy, swished)


def _swish_slope(op: GradientOps, s: ir.Value, y: ir.Value | None, alpha: float) -> ir.Value:
    """s + alpha y (1 - s)"""
    return op.Add(s, op.Mul(op.Mul(y, alpha), op.Sub(1.0, s)))


@gradient("Gelu")
@composite("GeluGrad", inputs=1, unread=False)
def gelu(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y = x Phi(x): dx = dy (Phi(x) + x phi(x)), or of Phi's approximation by tanh"""
    (x,) = node.inputs
    if attribute(node, "approximate") == "tanh":
        return op.Mul(dy, _tanh_gelu_slope(op, x, node.outputs[0]))
    u = op.Mul(x, math.sqrt(0.5))  # Phi(x) = (1 + erf(u)) / 2, phi(x) = exp(-u^2) / sqrt(2 pi)
    phi = op.Exp(op.Sub(-0.5 * math.log(2 * math.pi), op.Mul(u, u)))
    area = op.Add(op.Mul(op.Erf(u), 0.5), 0.5)
    return op.Mul(dy, op.Add(area, op.Mul(x, phi)))


def _tanh_gelu_slope(op: GradientOps, x: ir.Value | None, y: ir.Value) -> ir.Value:
    """y = x s(v), s the sigmoid, v = c x (1 + k x^2): s + y (1 - s) v', v' = c (1 + 3 k x^2)"""
    c, k = 2 * math.sqrt(2 / math.pi), 0.044715
    square = op.Mul(x, x)
    s = op.Sigmoid(op.Mul(x, op.Add(op.Mul(square, c * k), c)))
    slope = op.Add(op.Mul(square, 3 * c * k), c)
    return op.Add(s, op.Mul(op.Mul(y, op.Sub(1.0, s)), slope))


# -- normalised ------------------------------------------------------------------------------


@gradient("Softmax")
@composite("SoftmaxGrad", inputs=1, unread=False)
def softmax(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = y (dy - sum(y dy))"""
    (y,) = node.outputs
    total = op.ReduceSum(op.Mul(dy, y), [attribute(node, "axis")], keepdims=1)
    return op.Mul(y, op.Sub(dy, total))


@gradient("LogSoftmax")
@composite("LogSoftmaxGrad", inputs=1, unread=False)
def log_softmax(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy - exp(y) sum(dy)"""
    (y,) = node.outputs
    total = op.ReduceSum(dy, [attribute(node, "axis")], keepdims=1)
    return op.Sub(dy, op.Mul(op.Exp(y), total))
