"""Arithmetic on the scalars of an update: Python numbers are folded, values become rank-0 nodes.

A scalar costs nothing compared with a pass over a vector, so factors are merged into scalars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph.graph_ops import GraphOps

    Number: TypeAlias = float | ir.Value

FLOAT64 = 11  # onnx.TensorProto.DOUBLE


def times(op: GraphOps, a: Number, b: Number) -> Number:
    """a b"""
    if isinstance(a, (int, float)):
        if isinstance(b, (int, float)):
            return a * b
        return b if a == 1.0 else op.Mul(b, a)
    return a if isinstance(b, (int, float)) and b == 1.0 else op.Mul(a, b)


def product(op: GraphOps, x: ir.Value, c: Number) -> ir.Value:
    """c x, or x if c is 1"""
    return cast("ir.Value", times(op, x, c))


def plus(op: GraphOps, x: ir.Value, y: ir.Value, c: Number) -> ir.Value:
    """x + c y, with one pass less if c is 1 or -1"""
    if isinstance(c, (int, float)) and abs(c) == 1.0:
        return op.Add(x, y) if c > 0 else op.Sub(x, y)
    return op.Add(x, op.Mul(y, c))


def one_minus(op: GraphOps, a: ir.Value) -> ir.Value:
    """1 - a"""
    return op.Sub(1.0, a)


def count(op: GraphOps, step: ir.Value) -> ir.Value:
    """The step as a float64, in which 1 - 0.999 has enough digits."""
    return op.Cast(step, to=FLOAT64)


def power(op: GraphOps, base: float, exponent: ir.Value) -> ir.Value:
    """base ^ exponent, in the exponent's type"""
    return op.Pow(op.number_like(base, exponent), exponent)


def decayed(op: GraphOps, p: ir.Value, lr: ir.Value, weight_decay: float) -> ir.Value:
    """(1 - lr wd) p"""
    if not weight_decay:
        return p
    return op.Mul(p, decay(op, lr, weight_decay))


def decay(op: GraphOps, lr: ir.Value, weight_decay: float) -> ir.Value:
    """1 - lr wd"""
    return one_minus(op, op.Mul(lr, weight_decay))
