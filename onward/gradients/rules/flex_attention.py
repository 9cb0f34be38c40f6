"""Gradients of FlexAttention: attention with subgraphs for scores and probabilities."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.formula import formula
from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable
from onward.gradients.rules.attention import grouped, products, root_scale
from onward.gradients.rules.norm import wide
from onward.gradients.subgraph_copies import inline_subgraph
from onward.passes.value_facts import attribute

gradient = GradientTable()


@gradient("FlexAttention", domain="ai.onnx.preview")
@formula
def flex_attention(op: GradientOps, node: ir.Node) -> Any:
    """y = prob_mod(softmax(score_mod(scale q k'))) v, each of the graphs written out"""
    q, k, v = node.inputs
    assert q is not None and k is not None and v is not None
    scale, precision = attribute(node, "scale"), attribute(node, "softmax_precision")
    scores = products(op, op.Mul(q, root_scale(op, q) if scale is None else scale), k)
    scores = wide(op, scores) if precision is None else op.Cast(scores, to=precision)
    p = op.Softmax(_modified(op, node, "score_mod", scores), axis=-1)
    p = _modified(op, node, "prob_mod", p)
    rows = op.MatMul(grouped(op, p, k), op.cast_like(v, p))
    return op.cast_like(op.Reshape(rows, op.shape(*op.sizes(q)[:3], op.size(v, 3)), allowzero=1), v)


def _modified(op: GradientOps, node: ir.Node, name: str, x: ir.Value) -> ir.Value:
    graph = attribute(node, name)
    return x if graph is None else inline_subgraph(op, graph, x)[0]
