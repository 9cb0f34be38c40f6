"""Fuse a MatMul and the Add after it into one Gemm."""

from __future__ import annotations

import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import (
    fits_within,
    input_of,
    is_float,
    made_by,
    other_input,
    rank,
    reads_once,
)

rule = Rules()


@rule("Add")
def matmul_add(op: Ops, node: ir.Node) -> Replacement:
    """a b + c = gemm(a, b, c), for matrices and a bias that does not widen the product."""
    for product in node.inputs:
        matmul = made_by(product, "MatMul", "Gemm")
        if matmul is None or product is None or not reads_once(product) or not is_float(product):
            continue
        a, b = matmul.inputs[:2]
        c = other_input(node, product)
        if rank(a) != 2 or rank(b) != 2 or input_of(matmul, 2) is not None:
            continue
        if c is product or not fits_within(c, product):
            continue
        return op.Gemm(a, b, c, **{**matmul.attributes, "beta": 1.0})
    return None
