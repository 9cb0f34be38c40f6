"""Fuse activations that exporters write out: Gelu, Swish, HardSwish, Mish."""

from __future__ import annotations

import math

import onnx_ir as ir

from onward.passes.fuse.algebra import Powers, operands, polynomial
from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import (
    attribute,
    input_of,
    is_float,
    is_scalar,
    made_by,
    only_inside,
    other_input,
    rank,
)

rule = Rules()

_ROOT_TWO_OVER_PI = math.sqrt(2 / math.pi)
_HALVES: dict[Powers, float] = {(1, 0): 0.5, (1, 1): 0.5}  # 0.5 x + 0.5 x s


@rule("Mul", "Add", "Div")
def gelu(op: Ops, node: ir.Node) -> Replacement:
    """0.5 x (1 + erf(x / sqrt 2)), or with tanh(sqrt(2 / pi) (x + 0.044715 x^3)) for the erf."""
    y = node.outputs[0]
    if not is_float(y):
        return None
    for s in operands(y):
        bend = made_by(s, "Erf", "Tanh")
        if bend is None:
            continue
        exact = bend.op_type == "Erf"
        wanted: dict[Powers, float] = (
            {(1,): 1 / math.sqrt(2)}
            if exact
            else {(1,): _ROOT_TWO_OVER_PI, (3,): _ROOT_TWO_OVER_PI * 0.044715}
        )
        for x in operands(bend.inputs[0]):
            inner = polynomial(bend.inputs[0], [x])
            if inner is None or not inner.equals(wanted, y.dtype):
                continue
            outer = polynomial(y, [x, s])
            if outer is None or not outer.equals(_HALVES, y.dtype) or not _same_size(x, y):
                continue
            if only_inside([bend, *inner.nodes, *outer.nodes], node):
                return op.Gelu(x, approximate="none" if exact else "tanh")
    return None


@rule("Mul")
def swish(op: Ops, node: ir.Node) -> Replacement:
    """x sigmoid(a x), a = 1 without a factor."""
    for s in node.inputs:
        sigmoid = made_by(s, "Sigmoid")
        if sigmoid is None or s is None or not is_float(s):
            continue
        x = other_input(node, s)
        inner = None if x is None else polynomial(sigmoid.inputs[0], [x])
        if x is None or inner is None or inner.terms.keys() != {(1,)}:
            continue
        if _same_size(x, node.outputs[0]) and only_inside([sigmoid, *inner.nodes], node):
            return op.Swish(x, alpha=inner.terms[(1,)])
    return None


@rule("Mul", "Div")
def hard_swish(op: Ops, node: ir.Node) -> Replacement:
    """x clip(x + 3, 0, 6) / 6."""
    y = node.outputs[0]
    for s in operands(y):
        clip = made_by(s, "Clip")
        if clip is None or not is_float(s):
            continue
        if not is_scalar(input_of(clip, 1), 0) or not is_scalar(input_of(clip, 2), 6):
            continue
        for x in operands(clip.inputs[0]):
            inner, outer = polynomial(clip.inputs[0], [x]), polynomial(y, [x, s])
            if inner is None or outer is None or not inner.equals({(0,): 3.0, (1,): 1.0}, y.dtype):
                continue
            fits = outer.equals({(1, 1): 1 / 6}, y.dtype) and _same_size(x, y)
            if fits and only_inside([clip, *inner.nodes, *outer.nodes], node):
                return op.HardSwish(x)
    return None


@rule("Mul")
def hard_swish_of_hard_sigmoid(op: Ops, node: ir.Node) -> Replacement:
    """x hard_sigmoid(x), with alpha 1/6 and beta 1/2."""
    for s in node.inputs:
        sigmoid = made_by(s, "HardSigmoid")
        if sigmoid is None or s is None or other_input(node, s) is not sigmoid.inputs[0]:
            continue
        alpha, beta = attribute(sigmoid, "alpha"), attribute(sigmoid, "beta")
        if alpha is None or not math.isclose(alpha, 1 / 6, rel_tol=1e-5) or beta != 0.5:
            continue
        if only_inside([sigmoid], node):
            return op.HardSwish(sigmoid.inputs[0])
    return None


@rule("Mul")
def mish(op: Ops, node: ir.Node) -> Replacement:
    """x tanh(softplus(x))."""
    for s in node.inputs:
        tanh = made_by(s, "Tanh")
        softplus = None if tanh is None else made_by(tanh.inputs[0], "Softplus")
        if tanh is None or softplus is None or s is None:
            continue
        x = other_input(node, s)
        if x is softplus.inputs[0] and only_inside([tanh, softplus], node):
            return op.Mish(x)
    return None


def _same_size(x: ir.Value, y: ir.Value) -> bool:
    """Whether the formula keeps x's shape: its constants, of one element, could only add axes."""
    return rank(x) is not None and rank(x) == rank(y)
