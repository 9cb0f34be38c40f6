"""Gradients of Attention, MultiHeadAttention and RotaryEmbedding of com.microsoft.

Each is written as ONNX's operator with others around it, which are differentiated. Masks are added
to the scores, a large negative number (`mask_filter_value`) where a key is hidden.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.formula import formula
from onward.gradients.gradient_ops import GradientOps, Size, rank
from onward.gradients.rule import Gradient, GradientTable
from onward.gradients.rules.attention import split_heads
from onward.passes.value_facts import attribute, input_of

gradient = GradientTable()
microsoft = functools.partial(gradient, domain="com.microsoft")


@microsoft("RotaryEmbedding")
@formula
def rotary_embedding(op: GradientOps, node: ir.Node) -> Any:
    """y = x, each pair rotated by the angle of its position; one position is that of the first"""
    x, positions, cos, sin = node.inputs
    assert x is not None and positions is not None and cos is not None
    if rank(positions) == 1:
        length = op.size(x, -2)
        positions = op.Add(positions, op.arange(length))
        positions = op.Expand(positions, op.shape(op.size(x, 0), length))
    options = {"interleaved": attribute(node, "interleaved", 0)}
    options["rotary_embedding_dim"] = attribute(node, "rotary_embedding_dim", 0)
    if rank(x) == 3:
        heads = attribute(node, "num_heads", 0) or _whole_heads(op, x, cos)
        options["num_heads"] = heads
    (y,) = op.typed("RotaryEmbedding", [x, cos, sin, positions], options, [x])
    return y


def _whole_heads(op: GradientOps, x: ir.Value, cos: ir.Value) -> int:
    """The number of heads of x if the rotation covers whole heads."""
    hidden, half = op.size(x, 2), op.size(cos, -1)
    if not isinstance(hidden, int) or not isinstance(half, int):
        raise ValueError(
            "the number of heads is unknown: set num_heads, or export x and cos with static last "
            "dimensions"
        )
    return hidden // (2 * half)


# -- MultiHeadAttention and Attention --------------------------------------------------------


@microsoft("MultiHeadAttention")
@formula
def multi_head_attention(op: GradientOps, node: ir.Node) -> Any:
    """y = softmax(scale q k' + mask) v; and the keys, the values, the masked scores"""
    if input_of(node, 8) is not None or input_of(node, 9) is not None:
        raise ValueError("inputs 8 and 9, a cache that is updated in place, are not supported")
    heads = attribute(node, "num_heads")
    past = input_of(node, 6), input_of(node, 7)
    q, k, v = _unpacked(op, node, heads)
    mask = _added_mask(op, node, q, k, input_of(node, 4), input_of(node, 5), past[0])
    given = [q, k, v, mask, *past]
    y, scores = _attend(op, node, given, heads, asks_scores=len(node.outputs) > 3)
    return y, *(_present(op, p, x, heads) for p, x in zip(past, (k, v))), scores


@microsoft("Attention")
@formula
def attention(op: GradientOps, node: ir.Node) -> Any:
    """q, k, v = x w + b, y = softmax(scale q k' + mask) v; and the keys and values"""
    x, w, b, index, past, bias = (input_of(node, i) for i in range(6))
    if attribute(node, "do_rotary", 0):
        raise ValueError("do_rotary is not supported: apply RotaryEmbedding before the node")
    if input_of(node, 6) is not None:
        raise ValueError("input 6, a cache that is updated in place, is not supported")
    heads, sizes = attribute(node, "num_heads"), attribute(node, "qkv_hidden_sizes")
    qkv = op.MatMul(x, w) if b is None else op.Add(op.MatMul(x, w), b)
    split = {"num_outputs": 3} if sizes is None else {}
    q, k, v = op.Split(qkv, sizes, axis=-1, outputs=3, **split)
    parts = [None if past is None else op.Gather(past, np.int64(i), axis=0) for i in (0, 1)]
    mask = _added_mask(op, node, q, k, index, bias, parts[0])
    y, _ = _attend(op, node, [q, k, v, mask, *parts], heads, asks_scores=False)
    both = [op.Unsqueeze(_present(op, p, x, heads), [0]) for p, x in zip(parts, (k, v))]
    return y, op.Concat(*both, axis=0) if sizes is None or sizes[1] == sizes[2] else None


def _attend(
    op: GradientOps, node: ir.Node, given: list[Any], heads: int, *, asks_scores: bool
) -> Any:
    """y, and the masked scores, of q, k and v as (batch, length, heads * size)"""
    options: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": heads}
    options["is_causal"] = attribute(node, "unidirectional", 0)
    scale = attribute(node, "scale", 0.0)
    if scale:
        options["scale"] = scale
    if asks_scores:
        y, *_, scores = op.Attention(*given, outputs=4, qk_matmul_output_mode=2, **options)
        return y, scores
    return op.Attention(*given, **options), None


def _present(op: GradientOps, past: Gradient, x: ir.Value, heads: int) -> ir.Value:
    new = split_heads(op, x, heads)
    return new if past is None else op.Concat(past, new, axis=2)


def _unpacked(op: GradientOps, node: ir.Node, heads: int) -> tuple[Any, Any, Any]:
    """q, k and v as (batch, length, heads * size), from any of the packed forms."""
    query, key, value, bias = (input_of(node, i) for i in range(4))
    assert query is not None
    cached = key is not None and value is not None and rank(key) == 4
    if key is None:  # (batch, length, heads, 3, size)
        q, k, v = _split_packed(op, query, 3)
    elif value is None:  # (batch, length, heads, 2, size)
        q, (k, v) = query, _split_packed(op, key, 2)
    elif cached:  # (batch, heads, length, size), its bias added already
        q, k, v = query, *(merged(op, op.Transpose(x, perm=[0, 2, 1, 3])) for x in (key, value))
    else:
        q, k, v = query, key, value
    if bias is None:
        return q, k, v
    sizes = op.shape(*(op.size(x, 2) for x in (q, k, v)))
    bq, bk, bv = op.Split(bias, sizes, axis=0, outputs=3)
    return op.Add(q, bq), k if cached else op.Add(k, bk), v if cached else op.Add(v, bv)


def _split_packed(op: GradientOps, x: ir.Value, count: int) -> list[ir.Value]:
    """(batch, length, heads, count, size) -> count of (batch, length, heads * size)"""
    parts = op.Split(x, num_outputs=count, axis=3, outputs=count)
    return [merged(op, op.Squeeze(part, [3])) for part in parts]


def merged(op: GradientOps, x: ir.Value) -> ir.Value:
    """(batch, length, heads, size) -> (batch, length, heads * size)"""
    batch, length, heads, size = op.sizes(x)
    hidden = op.product(heads, size)
    return op.Reshape(x, op.shape(batch, length, hidden), allowzero=1)


def _added_mask(
    op: GradientOps,
    node: ir.Node,
    q: ir.Value,
    k: ir.Value,
    mask: Gradient,
    bias: Gradient,
    past: Gradient,
) -> Gradient:
    """The bias of the scores, from any form of a padding mask and a bias.

    A vector has the keys' ends, optionally followed by their starts; a matrix (batch, keys), or
    one of (batch, queries, keys), is 0 where a key is hidden.
    """
    if mask is None:
        return bias
    keys: Size = op.size(k, 1)
    if past is not None:
        keys = op.Add(op.shape(keys), op.shape(op.size(past, 2)))
    if rank(mask) == 1:
        seen = _between(op, op.Cast(mask, to=ir.DataType.INT64), op.size(q, 0), keys)
    elif rank(mask) == 4:  # (batch, 1, longest, longest): this step's part of it
        end = op.shape(keys)
        start = op.Sub(end, op.shape(op.size(q, 1)))
        part = op.Slice(op.Slice(mask, start, end, [2]), [0], end, [3])
        seen = op.Cast(part, to=ir.DataType.BOOL)
    else:
        seen = op.Unsqueeze(op.Cast(mask, to=ir.DataType.BOOL), [1, 2] if rank(mask) == 2 else [1])
    hidden = op.number_like(attribute(node, "mask_filter_value", -10000.0), q)
    added = op.Where(seen, op.number_like(0.0, q), hidden)
    return added if bias is None else op.Add(added, bias)


def _between(op: GradientOps, bounds: ir.Value, batch: Size, keys: Size) -> ir.Value:
    """start <= j < end for each of a batch, start 0 if there is none: (batch, 1, 1, keys)"""
    count, j = op.shape(batch), op.arange(keys)
    filled = op.Concat(bounds, op.Expand(np.int64(0), count), axis=0)
    rows = op.Reshape(op.Slice(filled, [0], op.Mul(count, 2), [0]), [2, -1, 1, 1, 1])
    ends, starts = op.Split(rows, num_outputs=2, axis=0, outputs=2)
    ends, starts = op.Squeeze(ends, [0]), op.Squeeze(starts, [0])
    return op.And(op.Less(j, ends), op.GreaterOrEqual(j, starts))
