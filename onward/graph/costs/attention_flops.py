"""Count the FLOPs of attention operators: scores, softmax, weighted values."""

from __future__ import annotations

from onward.graph.costs.flops import MICROSOFT, NodeCall
from onward.graph.operator_table import OpTable

ATTENTION_FLOPS = OpTable()

_SOFTMAX = 5  # largest, difference, exp, sum, quotient


def _attention(queries: int, results: int, heads_by_length: int, keys: int) -> float:
    """2 q k for the scores, their softmax, 2 p v for the results; `queries` are elements."""
    return 2 * keys * (queries + results) + _SOFTMAX * heads_by_length * keys


@ATTENTION_FLOPS("Attention", since=23)
def _standard(call: NodeCall) -> float:
    """q (batch, heads, length, size) or (batch, length, heads * size), and the past before k."""
    q, k = call.input(0), call.input(1)
    heads = q.dims[1] if len(q.dims) == 4 else call.number("q_num_heads", 1)
    keys = k.dims[-2] + (call.input(4).dims[-2] if call.has(4) else 0)
    return _attention(q.size, call.out.size, q.dims[0] * heads * q.dims[-2], keys)


@ATTENTION_FLOPS("MultiHeadAttention", "DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def _multi_head(call: NodeCall) -> float:
    """q (batch, length, heads * size), or q, k and v packed (batch, length, heads, 3, size)."""
    q, heads, result = call.input(0), call.number("num_heads", 1), call.out
    batch, length = q.dims[:2]
    if not call.has(1):
        keys = length
    else:
        k = call.input(1)
        keys = k.dims[2] if len(k.dims) == 4 else k.dims[1]
    past = 5 if call.node.op_type.startswith("Decoder") else 6
    keys += call.input(past).dims[-2] if call.has(past) else 0
    elements = q.size // 3 if len(q.dims) == 5 else q.size
    return _attention(elements, result.size, batch * heads * length, keys)


@ATTENTION_FLOPS("GroupQueryAttention", domain=MICROSOFT)
def _group_query(call: NodeCall) -> float:
    """Each query head reads every key so far; the keys are shared, the arithmetic is not."""
    heads, result = call.number("num_heads", 1), call.out
    batch, length = call.input(0).dims[:2]
    present = call.outputs[1] if len(call.outputs) > 1 else None
    if present is not None and present.shape is not None:
        keys = present.dims[-2]
    else:
        keys = length + (call.input(3).dims[-2] if call.has(3) else 0)
    return _attention(result.size, result.size, batch * heads * length, keys)


@ATTENTION_FLOPS("Attention", "QAttention", domain=MICROSOFT)
def _projected(call: NodeCall) -> float:
    """x (batch, length, size) times w for q, k and v together; then attention."""
    x, w, result = call.input(0), call.input(1), call.out
    batch, length = x.dims[:2]
    past = 8 if call.node.op_type == "QAttention" else 4
    keys = length + (call.input(past).dims[3] if call.has(past) else 0)
    projected = 2 * batch * length * w.size + batch * length * w.dims[-1]
    heads = batch * call.number("num_heads", 1) * length
    return projected + _attention(result.size, result.size, heads, keys)
