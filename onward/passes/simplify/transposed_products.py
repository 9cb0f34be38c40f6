"""Rules that remove Transposes around matrix products, for gradient graphs.

If the forward pass reads a weight transposed, the backward pass has `dy (w')'` and the weight's
gradient is `(x' dy)'`. Gemm has attributes for that; a MatMul swaps its operands.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.operators import RESHAPING
from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.simplify.consecutive_nodes import order_of
from onward.passes.value_facts import attribute, dims, input_of, made_by, rank, reads_once

rule = Rules()


@rule("Gemm")
def gemm_of_transposed(op: Ops, node: ir.Node) -> Replacement:
    """gemm(a', b) = gemm(a, b, transA), and so for b."""
    operands, turned = list(node.inputs[:2]), [attribute(node, n, 0) for n in ("transA", "transB")]
    for index, value in enumerate(node.inputs[:2]):
        transpose = made_by(value, "Transpose")
        if transpose is not None and order_of(transpose) == [1, 0]:
            operands[index], turned[index] = transpose.inputs[0], 1 - turned[index]
    if operands == list(node.inputs[:2]):
        return None
    options = {**_numbers(node), "transA": turned[0], "transB": turned[1]}
    return op.Gemm(*operands, input_of(node, 2), **options)


@rule("Transpose")
def transposed_gemm(op: Ops, node: ir.Node) -> Replacement:
    """(a b)' = b' a', where no other node reads the product."""
    product = node.inputs[0]
    gemm = made_by(product, "Gemm")
    if gemm is None or product is None or not reads_once(product) or order_of(node) != [1, 0]:
        return None
    if input_of(gemm, 2) is not None:
        return None
    turned_a, turned_b = attribute(gemm, "transA", 0), attribute(gemm, "transB", 0)
    a, b = gemm.inputs[:2]
    return op.Gemm(b, a, **_numbers(gemm), transA=1 - turned_b, transB=1 - turned_a)


def _numbers(gemm: ir.Node) -> dict[str, float]:
    return {name: attribute(gemm, name, 1.0) for name in ("alpha", "beta")}


@rule("Transpose")
def transposed_matmul(op: Ops, node: ir.Node) -> Replacement:
    """(a' b)' = b' a and (a b')' = b a', where no other node reads the product."""
    product = node.inputs[0]
    matmul = made_by(product, "MatMul")
    if matmul is None or product is None or not reads_once(product) or not swaps_last_axes(node):
        return None
    a, b = matmul.inputs
    inner_a, inner_b = _before_transpose(a), _before_transpose(b)
    if inner_a is None and inner_b is None:
        return None
    left, right = (
        _transposed(op, x) if inner is None else inner for x, inner in ((b, inner_b), (a, inner_a))
    )
    return None if left is None or right is None else op.MatMul(left, right)


def swaps_last_axes(transpose: ir.Node) -> bool:
    """Whether it swaps the last two axes, and only them."""
    order = order_of(transpose)
    if order is None or len(order) < 2:
        return False
    return order == [*range(len(order) - 2), len(order) - 1, len(order) - 2]


def _before_transpose(value: ir.Value | None) -> ir.Value | None:
    """The input of a Transpose of the last two axes."""
    transpose = made_by(value, "Transpose")
    return transpose.inputs[0] if transpose is not None and swaps_last_axes(transpose) else None


def _transposed(op: Ops, value: ir.Value | None) -> ir.Value | None:
    depth = rank(value)
    if depth is None or depth < 2:
        return None
    return op.Transpose(value, perm=[*range(depth - 2), depth - 1, depth - 2])


@rule("Flatten")
def flatten_of_reshape(op: Ops, node: ir.Node) -> Replacement:
    """flatten(reshape(x)) = x, if the shapes are the same"""
    inner = made_by(node.inputs[0], *RESHAPING)
    if inner is None or node.outputs[0].is_graph_output():
        return None
    before, after = dims(inner.inputs[0]), dims(node.outputs[0])
    if before is None or before != after or None in before:
        return None
    return inner.inputs[0]
