"""Gradients of the calls that passes/shared_batch_norms.py writes."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.functions import as_call, recorded
from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable
from onward.passes.composites import DOMAIN
from onward.passes.shared_batch_norms import ALL_REDUCE, MOMENTS

gradient = GradientTable()


@gradient(ALL_REDUCE, domain=DOMAIN)
def all_reduce(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = AllReduce(dy): each process's loss depends on the sum, and so on every process's x"""
    with recorded(op) as nodes:
        dx = op.Identity(dy)
    return as_call(op, ALL_REDUCE, nodes, [dy], {}, dx)


@gradient(MOMENTS, domain=DOMAIN)
def batch_moments(op: GradientOps, node: ir.Node, dmean: ir.Value, dsquares: ir.Value) -> Any:
    """dx = 2 dsquares (x - mean) + dmean / n, in one affine pass

    The squares' gradient through the mean is the sum of x - mean, which is 0.
    """
    x, mean = node.inputs[0], node.outputs[0]
    assert x is not None
    size = op.number(op.product(op.size(x, 0), *op.sizes(x)[2:]), mean)
    slope, shift = op.Mul(dsquares, 2.0), op.Div(dmean, size)
    ones = op.filled_like(mean, 1.0)
    return op.BatchNormalization(x, slope, shift, mean, ones, epsilon=0.0)
