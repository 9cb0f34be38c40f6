"""Gradients of linear attention, a recurrence over time."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.formula import formula
from onward.gradients.gradient_ops import GradientOps, rank
from onward.gradients.rule import GradientTable
from onward.gradients.rules.attention import root_scale
from onward.gradients.rules.norm import wide
from onward.gradients.rules.recurrent_layer import scan
from onward.passes.value_facts import attribute, input_of

gradient = GradientTable()


@gradient("LinearAttention")
@formula
def linear_attention(op: GradientOps, node: ir.Node) -> Any:
    """S' = e^g S + k u', y = scale q' S'; u is v, or beta (v - e^g S' k) under a delta rule

    A Scan over the steps; its gradient is a Scan from the last to the first.
    """
    query, key, value = node.inputs[:3]
    past, decay, beta = (input_of(node, i) for i in (3, 4, 5))
    assert query is not None
    rule, heads = attribute(node, "update_rule"), attribute(node, "kv_num_heads")
    q = _steps(op, query, heads, attribute(node, "q_num_heads") // heads)
    k, v = (_steps(op, x, heads, 1) for x in (key, value))
    fade = rate = None
    if "gated" in rule:  # (time, batch, heads, size or 1, 1)
        fade = op.Exp(op.Transpose(_steps(op, decay, heads, 1), perm=[0, 1, 2, 4, 3]))
    if "delta" in rule:
        assert beta is not None
        rate = op.Unsqueeze(op.Transpose(wide(op, beta), perm=[1, 0, 2]), [3, 4])
    if past is None:
        sizes = (op.size(k, 1), heads, op.size(k, -1), op.size(v, -1))
        start = op.Expand(op.number_like(0.0, k), op.shape(*sizes))
    else:
        start = wide(op, past)
    last, ys = scan(op, [start], [q, k, v, fade, rate], _step, from_end=False)
    scale = attribute(node, "scale") or root_scale(op, q)
    y = op.Transpose(op.Mul(ys, scale), perm=[1, 0, 2, 3, 4])  # (batch, time, heads, readers, size)
    y = op.Reshape(y, op.shape(0, 0, -1))
    return op.cast_like(y, query), op.cast_like(last, query if past is None else past)


def _step(op: GradientOps, state: Any, q: Any, k: Any, v: Any, fade: Any, rate: Any) -> Any:
    state = state if fade is None else op.Mul(state, fade)
    u = v if rate is None else op.Mul(rate, op.Sub(v, op.MatMul(k, state)))
    state = op.Add(state, op.Mul(op.Transpose(k, perm=[0, 1, 3, 2]), u))
    return state, op.MatMul(q, state)


def _steps(op: GradientOps, x: Any, heads: int, readers: int) -> ir.Value:
    """(batch, time, heads * readers * size) -> (time, batch, heads, readers, size), in float32"""
    assert rank(x) == 3
    split = op.Reshape(wide(op, x), op.shape(0, 0, heads, readers, -1))
    return op.Transpose(split, perm=[1, 0, 2, 3, 4])
