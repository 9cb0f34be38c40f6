"""Gradients of functions that leave out rows: see passes/token_functions.py."""

from __future__ import annotations

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable
from onward.passes.token_functions import DOMAIN, PACK, PACK_GRADIENTS, UNPACK, add_function

gradient = GradientTable()


@gradient(PACK, PACK_GRADIENTS, domain=DOMAIN)
def pack_tokens(op: GradientOps, node: ir.Node, dy: ir.Value) -> ir.Value:
    """dx = [dy; 0][restore]: the rows that were left out have no gradient"""
    return _call(op, UNPACK, node, dy)


@gradient(UNPACK, domain=DOMAIN)
def unpack_tokens(op: GradientOps, node: ir.Node, dx: ir.Value) -> ir.Value:
    """dy = dx[gather], 0 for rows that fill the bucket"""
    return _call(op, PACK_GRADIENTS, node, dx)


def _call(op: GradientOps, name: str, node: ir.Node, dy: ir.Value) -> ir.Value:
    x, gather, restore = node.inputs
    assert x is not None
    if op.functions is None:
        raise ValueError(
            "function calls are not supported here: inline the functions of domain onward first"
        )
    add_function(op.functions, name, op.opsets[""])
    dx = op.node(name, (dy, gather, restore), {}, domain=DOMAIN)
    assert isinstance(dx, ir.Value)
    dx.type, dx.shape = dy.type, x.shape
    return dx
