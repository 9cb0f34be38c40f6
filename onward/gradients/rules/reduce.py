"""Gradients of reductions: dy gets its reduced axes back (`_kept`), then it broadcasts."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps, Size
from onward.gradients.rule import GradientTable
from onward.gradients.rules.zeros import Zeros
from onward.passes.value_facts import attribute, input_of, ints

gradient = GradientTable()


def _axes(node: ir.Node) -> ir.Value | None:
    """The axes as an input; None: all of them, or none (`noop_with_empty_axes`)."""
    axes = input_of(node, 1)
    return None if ints(axes) == [] else axes


def _kept(op: GradientOps, node: ir.Node, y: ir.Value) -> ir.Value:
    """y with its reduced axes as size 1, so that it broadcasts with x."""
    axes = _axes(node)
    return y if attribute(node, "keepdims") or axes is None else op.Unsqueeze(y, axes)


def _again(op: GradientOps, node: ir.Node, operator: str, x: ir.Value) -> Any:
    """Another reduction over the same axes, with keepdims."""
    noop = attribute(node, "noop_with_empty_axes", 0)
    inputs = [x] if _axes(node) is None else [x, _axes(node)]
    return op.node(operator, inputs, {"keepdims": 1, "noop_with_empty_axes": noop})


def _spread(op: GradientOps, node: ir.Node, dy: ir.Value) -> ir.Value:
    """dy repeated along the reduced axes."""
    (x, *_) = node.inputs
    assert x is not None
    return op.Expand(_kept(op, node, dy), op.shape_of(x))


@gradient("ReduceSum")
def reduce_sum(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy"""
    return _spread(op, node, dy)


@gradient("ReduceMean")
def reduce_mean(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy / n"""
    return _spread(op, node, op.Div(dy, op.number(_count(op, node), dy)))


def _count(op: GradientOps, node: ir.Node) -> Size:
    """The number of elements of x per element of y."""
    x, axes = node.inputs[0], _axes(node)
    assert x is not None
    if axes is None:
        return 1 if attribute(node, "noop_with_empty_axes", 0) else op.product(*op.sizes(x))
    known = ints(axes)
    if known is not None:
        return op.product(*(op.size(x, axis) for axis in known))
    wholes = op.Div(op.Size(x), op.Max(op.Size(node.outputs[0]), 1))
    return op.Unsqueeze(wholes, [0])


@gradient("ReduceSumSquare")
def reduce_sum_square(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = 2 x dy"""
    return op.Mul(node.inputs[0], op.Mul(_kept(op, node, dy), 2.0))


@gradient("ReduceL1")
def reduce_l1(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy sign(x)"""
    return op.Mul(op.Sign(node.inputs[0]), _kept(op, node, dy))


@gradient("ReduceL2")
def reduce_l2(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = x dy / y, 0 where y is"""
    (y,) = node.outputs
    scale = op.Div(dy, op.Where(op.Equal(y, 0.0), 1.0, y))
    return op.Mul(node.inputs[0], _kept(op, node, scale))


@gradient("ReduceLogSum")
def reduce_log_sum(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy / exp(y)"""
    return _spread(op, node, op.Div(dy, op.Exp(node.outputs[0])))


@gradient("ReduceLogSumExp")
def reduce_log_sum_exp(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy exp(x - y); where every x is -inf, 0"""
    (y,) = node.outputs
    largest = op.Where(op.IsInf(y), 0.0, y)
    softmax = op.Exp(op.Sub(node.inputs[0], _kept(op, node, largest)))
    return op.Mul(softmax, _kept(op, node, dy))


@gradient("ReduceMax", "ReduceMin")
def reduce_extreme(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy [x = y] / how many x are y: equals share"""
    (y,) = node.outputs
    chosen = op.cast_like(op.Equal(node.inputs[0], _kept(op, node, y)), y)
    share = op.Div(_kept(op, node, dy), _again(op, node, "ReduceSum", chosen))
    return op.Mul(chosen, share)


@gradient("ReduceProd")
def reduce_prod(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx_i = dy prod over j != i of x_j: those that are not 0, over x_i, times those that are"""
    x = node.inputs[0]
    assert x is not None
    parts = Zeros(op, x)
    product = _again(op, node, "ReduceProd", parts.factors)
    others = (
        op.Sub(_again(op, node, "ReduceSum", each), each) for each in (parts.flags, parts.zeros)
    )
    rest = op.Div(op.Mul(product, _kept(op, node, dy)), parts.factors)
    return op.Mul(parts.product(*others), rest)


# -- running sums and products ---------------------------------------------------------------


@gradient("CumSum")
def cum_sum(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx_k = sum over i >= k of dy_i: the sum the other way round"""
    return op.CumSum(dy, node.inputs[1], **_direction(node, turned=True))


@gradient("CumProd")
def cum_prod(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx_k = sum over i >= k of dy_i (prod over j <= i, j != k of x_j)

    With 1 for zeros, that is sum(dy p) / x_k, over the i without another zero before them: those
    before the first zero, or, for the first zero, those up to the second.
    """
    x, axis = node.inputs
    assert x is not None
    parts = Zeros(op, x)
    count, zeros = (  # up to each i
        op.CumSum(each, axis, **_direction(node)) for each in (parts.flags, parts.zeros)
    )
    terms = op.Mul(dy, op.CumProd(parts.factors, axis, **_direction(node)))

    def behind(share: ir.Value) -> ir.Value:
        return op.CumSum(op.Mul(terms, share), axis, **_direction(node, turned=True))

    own = op.Mul(parts.zeros, behind(parts.exactly(2, count)))  # x_k is excluded
    first = op.Sub(behind(parts.product(count, zeros, besides=1)), own)
    before = behind(parts.product(count, zeros))
    return op.Div(op.Where(parts.places, first, before), parts.factors)


def _direction(node: ir.Node, *, turned: bool = False) -> dict[str, int]:
    reverse = attribute(node, "reverse")
    return {
        "exclusive": attribute(node, "exclusive"),
        "reverse": 1 - reverse if turned else reverse,
    }
