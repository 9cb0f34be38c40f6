"""Adam, Adagrad and Momentum of ai.onnx.preview.training, expanded to their formulas.

Each takes R, the learning rate, T, the number of updates so far, and groups of tensors: all
parameters, all their gradients, then all of each state. The c of a formula is the node's
`norm_coefficient`; the formulas are those of ONNX's specification.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onward.errors import InvalidModel
from onward.gradients.gradient_ops import GradientOps
from onward.passes.value_facts import attribute

UpdateRule = Callable[[GradientOps, ir.Node], list[ir.Value]]


def adam(op: GradientOps, node: ir.Node) -> list[ir.Value]:
    """v' = a v + (1 - a) g,  h' = b h + (1 - b) g^2,  x' = (1 - p) (x - r v' / (sqrt(h') + e))

    with g + c x for g, and r = R sqrt(1 - b^T) / (1 - a^T) once T > 0.
    """
    alpha, beta = (attribute(node, name, 0.0) for name in ("alpha", "beta"))
    epsilon, post = (attribute(node, name, 0.0) for name in ("epsilon", "norm_coefficient_post"))
    correction = _bias_correction(op, node, alpha, beta)
    news = []
    for x, gradient, v, h in _groups(node, 4):
        g = _regularized(op, node, x, gradient)
        v = op.Add(op.Mul(v, alpha), op.Mul(g, 1.0 - alpha))
        h = op.Add(op.Mul(h, beta), op.Mul(op.Mul(g, g), 1.0 - beta))
        rate = op.Mul(_rate(op, node, x), op.cast_like(correction, x))
        x = op.Sub(x, op.Mul(rate, op.Div(v, op.Add(op.Sqrt(h), epsilon))))
        news.append((op.Mul(x, 1.0 - post) if post else x, v, h))
    return _in_order(news)


def adagrad(op: GradientOps, node: ir.Node) -> list[ir.Value]:
    """h' = h + g^2,  x' = x - R / (1 + d T) g / (sqrt(h') + e), with g + c x for g"""
    decay, epsilon = (attribute(node, name, 0.0) for name in ("decay_factor", "epsilon"))
    count = _count(op, node)
    news = []
    for x, gradient, h in _groups(node, 3):
        g = _regularized(op, node, x, gradient)
        h = op.Add(h, op.Mul(g, g))
        rate = _rate(op, node, x)
        if decay:
            rate = op.Div(rate, op.Add(op.Mul(op.cast_like(count, x), decay), 1.0))
        news.append((op.Sub(x, op.Mul(rate, op.Div(g, op.Add(op.Sqrt(h), epsilon)))), h))
    return _in_order(news)


def momentum(op: GradientOps, node: ir.Node) -> list[ir.Value]:
    """v' = a v + b g (b = 1 while T = 0),  x' = x - R v', with g + c x for g

    In mode nesterov, x' = x - R (g + a v').
    """
    alpha, beta = (attribute(node, name, 0.0) for name in ("alpha", "beta"))
    started = op.Greater(_count(op, node), 0)
    news = []
    for x, gradient, v in _groups(node, 3):
        g = _regularized(op, node, x, gradient)
        share = op.Where(started, op.number_like(beta, x), op.number_like(1.0, x))
        v = op.Add(op.Mul(v, alpha), op.Mul(g, share))
        step = op.Add(g, op.Mul(v, alpha)) if attribute(node, "mode", "") == "nesterov" else v
        news.append((op.Sub(x, op.Mul(_rate(op, node, x), step)), v))
    return _in_order(news)


UPDATES: dict[str, UpdateRule] = {"Adam": adam, "Adagrad": adagrad, "Momentum": momentum}


def _groups(node: ir.Node, size: int) -> list[tuple[ir.Value, ...]]:
    """For each parameter: x, its gradient, its states."""
    tensors = [value for value in node.inputs[2:] if value is not None]
    count = len(tensors) // size
    if not count or len(tensors) % size:
        raise InvalidModel(
            f"{node.op_type} (node {node.name!r}) has {len(tensors)} inputs after R and T: "
            f"it needs {size} for each parameter"
        )
    return [tuple(tensors[i::count]) for i in range(count)]


def _in_order(news: Sequence[tuple[ir.Value, ...]]) -> list[ir.Value]:
    """All new xs first, then all of each state."""
    return [value for kind in zip(*news) for value in kind]


def _regularized(op: GradientOps, node: ir.Node, x: ir.Value, g: ir.Value) -> ir.Value:
    """g + c x"""
    coefficient = attribute(node, "norm_coefficient", 0.0)
    return op.Add(op.Mul(x, coefficient), g) if coefficient else g


def _rate(op: GradientOps, node: ir.Node, x: ir.Value) -> ir.Value:
    """R as a scalar of x's type."""
    return op.cast_like(_scalar(op, node.inputs[0]), x)


def _count(op: GradientOps, node: ir.Node) -> ir.Value:
    """T as a scalar."""
    return _scalar(op, node.inputs[1])


def _scalar(op: GradientOps, value: ir.Value | None) -> ir.Value:
    """A scalar from a scalar or a vector of one element."""
    assert value is not None
    is_scalar = value.shape is not None and len(value.shape) == 0
    return value if is_scalar else op.Reshape(value, op.shape())


def _bias_correction(op: GradientOps, node: ir.Node, alpha: float, beta: float) -> ir.Value:
    """sqrt(1 - b^T) / (1 - a^T), or 1 while T = 0.

    In float64: 1 - 0.999 has three digits fewer than its terms.
    """
    count = _count(op, node)
    power = op.Cast(op.Max(count, 1), to=int(ir.DataType.DOUBLE))
    above = op.Sqrt(op.Sub(1.0, op.Pow(np.float64(beta), power)))
    full = op.Div(above, op.Sub(1.0, op.Pow(np.float64(alpha), power)))
    return op.Where(op.Greater(count, 0), full, np.float64(1.0))
