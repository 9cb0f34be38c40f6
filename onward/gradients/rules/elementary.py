"""Gradients of elementary functions of one input."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable

gradient = GradientTable()


@gradient("Neg")
def neg(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = -dy"""
    return op.Neg(dy)


@gradient("Abs")
def abs_(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy sign(x)"""
    (x,) = node.inputs
    return op.Mul(dy, op.Sign(x))


@gradient("Reciprocal")
def reciprocal(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = -dy y^2"""
    (y,) = node.outputs
    return op.Neg(op.Mul(dy, op.Mul(y, y)))


@gradient("Sqrt")
def sqrt(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy / (2 y)"""
    (y,) = node.outputs
    return op.Div(op.Mul(dy, 0.5), y)


@gradient("Exp")
def exp(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy y"""
    (y,) = node.outputs
    return op.Mul(dy, y)


@gradient("Log")
def log(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy / x"""
    (x,) = node.inputs
    return op.Div(dy, x)


@gradient("Erf")
def erf(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy 2 / sqrt(pi) exp(-x^2), the factor as part of the exponent"""
    (x,) = node.inputs
    return op.Mul(dy, op.Exp(op.Sub(math.log(2.0 / math.sqrt(math.pi)), op.Mul(x, x))))


# -- angles ----------------------------------------------------------------------------------


@gradient("Sin")
def sin(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy cos(x)"""
    (x,) = node.inputs
    return op.Mul(dy, op.Cos(x))


@gradient("Cos")
def cos(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = -dy sin(x)"""
    (x,) = node.inputs
    return op.Neg(op.Mul(dy, op.Sin(x)))


@gradient("Tan")
def tan(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy (1 + y^2)"""
    (y,) = node.outputs
    return op.Mul(dy, op.Add(op.Mul(y, y), 1.0))


@gradient("Asin")
def asin(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy / sqrt(1 - x^2)"""
    (x,) = node.inputs
    return op.Div(dy, _sqrt_one_minus_square(op, x))


@gradient("Acos")
def acos(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = -dy / sqrt(1 - x^2)"""
    (x,) = node.inputs
    return op.Neg(op.Div(dy, _sqrt_one_minus_square(op, x)))


def _sqrt_one_minus_square(op: GradientOps, x: ir.Value | None) -> ir.Value:
    """sqrt(1 - x^2) as a product of factors, which is precise near 1."""
    return op.Sqrt(op.Mul(op.Sub(1.0, x), op.Add(x, 1.0)))


@gradient("Atan")
def atan(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy / (1 + x^2)"""
    (x,) = node.inputs
    return op.Div(dy, op.Add(op.Mul(x, x), 1.0))


# -- hyperbolic ------------------------------------------------------------------------------


@gradient("Sinh")
def sinh(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy cosh(x)"""
    (x,) = node.inputs
    return op.Mul(dy, op.Cosh(x))


@gradient("Cosh")
def cosh(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy sinh(x)"""
    (x,) = node.inputs
    return op.Mul(dy, op.Sinh(x))


@gradient("Tanh")
def tanh(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy (1 - y^2)"""
    (y,) = node.outputs
    return op.Mul(dy, op.Sub(1.0, op.Mul(y, y)))


@gradient("Asinh")
def asinh(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy / sqrt(x^2 + 1)"""
    (x,) = node.inputs
    return op.Div(dy, op.Sqrt(op.Add(op.Mul(x, x), 1.0)))


@gradient("Acosh")
def acosh(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy / sqrt(x^2 - 1)"""
    (x,) = node.inputs
    return op.Div(dy, op.Sqrt(op.Mul(op.Sub(x, 1.0), op.Add(x, 1.0))))


@gradient("Atanh")
def atanh(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy / (1 - x^2)"""
    (x,) = node.inputs
    return op.Div(dy, op.Mul(op.Sub(1.0, x), op.Add(x, 1.0)))
