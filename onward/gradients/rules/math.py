"""Gradients of broadcasting arithmetic, Clip and type conversions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.clip_bounds import stops_at_bounds
from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable, broadcasting
from onward.passes.value_facts import constant, input_of, scalar

gradient = GradientTable()


@gradient("Identity")
def identity(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy"""
    return dy


@gradient("Cast", "CastLike")
def cast(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy, in x's type"""
    x = node.inputs[0]
    assert x is not None
    return op.cast_like(dy, x)


@gradient("Add")
@broadcasting
def add(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """da = dy, db = dy"""
    return dy, dy


@gradient("Sub")
def sub(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """da = dy, db = -dy"""
    a, b = node.inputs
    assert a is not None and b is not None
    return op.sum_to(dy, a), op.Neg(op.sum_to(dy, b))  # the sign last, on the smallest tensor


@gradient("Mul")
@broadcasting
def mul(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """da = dy b, db = dy a"""
    a, b = node.inputs
    return op.Mul(dy, b), op.Mul(dy, a)


@gradient("Div")
def div(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """da = dy / b, db = -y dy / b"""
    (a, b), (y,) = node.inputs, node.outputs
    assert a is not None and b is not None
    number = scalar(b)
    da = op.Mul(dy, 1.0 / number) if number else op.Div(dy, b)
    return op.sum_to(da, a), op.Neg(op.sum_to(op.Mul(da, y), b))


@gradient("Mod")
@broadcasting
def mod(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y = a - n b with n = (a - y) / b a whole number: da = dy, db = -dy n"""
    (a, b), (y,) = node.inputs, node.outputs
    n = op.Round(op.Div(op.Sub(a, y), b))
    return dy, op.Neg(op.Mul(dy, n))


@gradient("Pow")
@broadcasting
def pow_(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy e x^(e-1), de = dy y log(x); 0 where e = 0, and where x = 0 <= e"""
    (x, e), (y,) = node.inputs, node.outputs
    assert x is not None and e is not None
    power = op.cast_like(e, x)
    known = constant(e)
    base = x
    if known is None or not np.all(known):  # 0 * 0^(-1) would be NaN
        base = op.Where(op.Equal(power, 0.0), 1.0, x)
    lower = op.Mul(x, x) if scalar(e) == 3 else op.Pow(base, op.Sub(power, 1.0))
    dx = op.Mul(dy, op.Mul(lower, power))
    at_zero = op.And(op.Equal(x, 0.0), op.GreaterOrEqual(power, 0.0))
    log = op.Log(op.Where(at_zero, 1.0, x))
    return dx, op.cast_like(op.Mul(dy, op.Mul(y, log)), e)


@gradient("Sum")
@broadcasting
def sum_(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx_i = dy"""
    return [dy for _ in node.inputs]


@gradient("Mean")
@broadcasting
def mean(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx_i = dy / n"""
    share = op.Mul(dy, 1.0 / len(node.inputs))
    return [share for _ in node.inputs]


@gradient("Max", "Min")
@broadcasting
def extreme(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx_i = dy / how many x are y, where x_i = y, else 0: equals share"""
    (y,) = node.outputs
    chosen = [op.Equal(x, y) for x in node.inputs]
    if len(chosen) == 1:
        return dy
    share = op.Div(dy, op.Sum(*(op.cast_like(each, y) for each in chosen)))
    return [op.Where(each, share, 0.0) for each in chosen]


@gradient("Where")
@broadcasting
def where(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """da = dy where c, db = dy where not c"""
    condition = node.inputs[0]
    return None, op.Where(condition, dy, 0.0), op.Where(condition, 0.0, dy)


@gradient("Clip")
@broadcasting
def clip(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy where y = x, dlow = dy where x < low, dhigh = dy where x > high (y if low > high)

    Where the bounds have no gradient, neither has x there: dx = dy where low < y < high.
    """
    (x, *_), (y,) = node.inputs, node.outputs
    low, high = input_of(node, 1), input_of(node, 2)
    if low is None and high is None:
        return dy
    if stops_at_bounds(node) and low is not None and high is not None:
        inside = op.And(op.Greater(y, low), op.Less(y, high))
        return op.Where(inside, dy, 0.0), None, None
    dx = op.Where(op.Equal(x, y), dy, 0.0)
    below = None if low is None else op.Less(x, low)
    above = None if high is None else op.Greater(x, high)
    if below is not None and above is not None:
        below = op.And(below, op.LessOrEqual(low, high))
        above = op.Or(above, op.Greater(low, high))
    bounds = [None if out is None else op.Where(out, dy, 0.0) for out in (below, above)]
    return dx, *bounds
