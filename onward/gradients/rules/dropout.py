"""Gradient of Dropout: dy with the same mask."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable
from onward.passes.random_functions import DOMAIN, MASKED_SCALE
from onward.passes.value_facts import constant, input_of

gradient = GradientTable()


@gradient("Dropout")
def dropout(op: GradientOps, node: ir.Node, dy: ir.Value, _: Any = None) -> Any:
    """dx = dy mask / (1 - ratio) while training, dx = dy otherwise"""
    training = input_of(node, 2)
    known = constant(training)
    if training is None or (known is not None and not known.any()):
        return dy
    ratio = input_of(node, 1)
    kept = op.Sub(1.0, op.cast_like(ratio, dy)) if ratio is not None else op.number_like(0.5, dy)
    if known is None:
        kept = op.Where(training, kept, 1.0)
    return op.Where(op.output(node, 1), op.Div(dy, kept), 0.0)


@gradient(MASKED_SCALE, domain=DOMAIN)
def masked_scale(op: GradientOps, node: ir.Node, dy: ir.Value) -> ir.Value:
    """dx = dy mask scale"""
    _, mask, scale = node.inputs
    dx: ir.Value = op.MaskedScale(dy, mask, scale, domain=DOMAIN)
    dx.type, dx.shape = dy.type, dy.shape
    return dx
