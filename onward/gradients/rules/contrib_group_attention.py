"""Gradients of GroupQueryAttention (com.microsoft), the attention of language models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.formula import formula
from onward.gradients.gradient_ops import GradientOps, Size
from onward.gradients.rule import Gradient, GradientTable
from onward.gradients.rules.attention import split_heads
from onward.gradients.rules.contrib_attention import merged
from onward.passes.value_facts import attribute, dims, input_of

gradient = GradientTable()


@gradient("GroupQueryAttention", domain="com.microsoft")
@formula
def group_query_attention(op: GradientOps, node: ir.Node) -> Any:
    """y = softmax(softcap(scale q k') + mask) v, over a cache that the new keys enter

    A sequence's new tokens follow the seqlens_k + 1 - length tokens that it has in the cache.
    """
    if input_of(node, 12) is not None or input_of(node, 13) is not None:
        raise ValueError("a quantized cache (inputs 12 and 13) is not supported")
    if attribute(node, "sliding_window_cache", 0):
        raise ValueError("sliding_window_cache is not supported")
    heads = {"q_num_heads": attribute(node, "num_heads")}
    heads["kv_num_heads"] = attribute(node, "kv_num_heads")
    readers, keys = heads.values()
    q, k, v = _query_key_value(op, node, readers, keys)
    at = _places(op, node, q)
    q, k = _rotated(op, node, q, at, readers), _rotated(op, node, k, at, keys)
    present = [split_heads(op, x, keys) for x in (k, v)]
    if not _is_first(node):
        total = op.Reshape(op.Cast(node.inputs[6], to=ir.DataType.INT64), [1])
        caches = zip(node.inputs[3:5], present)
        present = [_write_cache(op, past, x, at, total) for past, x in caches]
        seen = (op.Slice(x, [0], total, [2]) for x in present)
        k, v = (merged(op, op.Transpose(x, perm=[0, 2, 1, 3])) for x in seen)
    y, scores = _attend(op, node, (q, k, v), at, heads)
    return y, *present, scores


def _is_first(node: ir.Node) -> bool:
    """Whether the cache is known to be empty."""
    past = input_of(node, 3)
    return past is None or (dims(past) or (None,) * 4)[2] == 0


def _query_key_value(
    op: GradientOps, node: ir.Node, readers: int, keys: int
) -> tuple[Any, Any, Any]:
    """q, k and v as (batch, length, heads * size), q and k perhaps normalised per head."""
    q, k, v = node.inputs[:3]
    if k is None or v is None:
        packed, all_heads = op.size(q, 2), readers + 2 * keys  # type: ignore[arg-type]
        size = packed // all_heads if isinstance(packed, int) else op.Div(packed, all_heads)
        sizes = op.shape(*(op.product(size, heads) for heads in (readers, keys, keys)))
        q, k, v = op.Split(q, sizes, axis=-1, outputs=3)
    norms = ((q, input_of(node, 14), readers), (k, input_of(node, 15), keys))
    q, k = (_normalised(op, node, x, weight, heads) for x, weight, heads in norms)
    return q, k, v


def _normalised(op: GradientOps, node: ir.Node, x: Any, weight: Gradient, heads: int) -> Any:
    if weight is None:
        return x
    apart = op.Reshape(x, op.shape(0, 0, heads, -1))
    epsilon = attribute(node, "qk_norm_epsilon", 1e-6)
    return op.reshape_as(op.RMSNormalization(apart, weight, axis=-1, epsilon=epsilon), x)


def _places(op: GradientOps, node: ir.Node, q: Any) -> ir.Value:
    """The position of each new token in the cache: (batch, length); at the first step, from 0."""
    length = op.size(q, 1)
    steps = op.arange(length)
    if _is_first(node):
        return op.Expand(steps, op.shape(op.size(q, 0), length))
    last = op.Reshape(op.Cast(node.inputs[5], to=ir.DataType.INT64), [-1, 1])
    total = op.Reshape(op.Cast(node.inputs[6], to=ir.DataType.INT64), [1, 1])
    count = op.shape(length)
    starts = op.Where(op.Equal(total, count), 0, op.Sub(op.Add(last, 1), count))
    return op.Add(starts, steps)


def _rotated(op: GradientOps, node: ir.Node, x: Any, at: ir.Value, heads: int) -> ir.Value:
    """Apply rotary positions, if the node does."""
    cos, sin, given = (input_of(node, i) for i in (7, 8, 9))
    if not attribute(node, "do_rotary", 0) or cos is None or sin is None:
        return x
    partial = 2 * cos.shape[1] if cos.shape is not None and isinstance(cos.shape[1], int) else 0
    options = {"interleaved": attribute(node, "rotary_interleaved", 0), "num_heads": heads}
    options["rotary_embedding_dim"] = partial
    places = at if given is None else given
    (y,) = op.typed("RotaryEmbedding", [x, cos, sin, places], options, [x])
    return y


def _write_cache(
    op: GradientOps, past: Any, x: ir.Value, at: ir.Value, total: ir.Value
) -> ir.Value:
    """The cache with `total` tokens, the new ones at their positions."""
    room = op.Max(op.Sub(total, op.shape(op.size(past, 2))), 0)
    pads = op.Concat(np.zeros(1, np.int64), room, axis=0)
    cache = op.Pad(past, pads, None, [2], mode="constant")
    places = op.Expand(op.Unsqueeze(at, [1, 3]), op.shape_of(x))
    return op.ScatterElements(cache, places, x, axis=2, reduction="none")


# -- scores ----------------------------------------------------------------------------------


def _attend(
    op: GradientOps, node: ir.Node, qkv: tuple[Any, Any, Any], at: ir.Value, heads: dict[str, int]
) -> Any:
    """y, and the scores or probabilities if the node returns them"""
    q, k, v = qkv
    window, bias, sink = (
        attribute(node, "local_window_size", -1),
        input_of(node, 10),
        input_of(node, 11),
    )
    options: dict[str, Any] = {**heads, "softcap": attribute(node, "softcap", 0.0)}
    if attribute(node, "scale", 0.0):
        options["scale"] = attribute(node, "scale")
    has_sink = sink is not None or attribute(node, "smooth_softmax", -1) > 0
    causal, keys = attribute(node, "causal", 1), op.size(k, 1)
    if causal and window <= 0 and bias is None and not has_sink and _is_first(node):
        mask, options["is_causal"] = None, 1
    else:
        mask = _mask(op, node, q, keys, at)
    if has_sink:
        k, v, mask = _with_sink(op, (q, k, v, mask), sink, heads["q_num_heads"])
    if len(node.outputs) < 4:
        return op.Attention(q, k, v, mask, **options), None
    mode = 3 if attribute(node, "qk_output", 0) == 2 else 2
    y, *_, scores = op.Attention(q, k, v, mask, outputs=4, qk_matmul_output_mode=mode, **options)
    return y, op.Slice(scores, [0], op.shape(keys), [3]) if has_sink else scores


def _mask(op: GradientOps, node: ir.Node, q: Any, keys: Size, at: ir.Value) -> ir.Value:
    """The bias: -inf for keys after the token and before its window."""
    j = op.arange(keys)
    place = op.Unsqueeze(at, [1, 3])  # (batch, 1, length, 1)
    if attribute(node, "causal", 1):
        seen, window = op.LessOrEqual(j, place), attribute(node, "local_window_size", -1)
        if window > 0:
            seen = op.And(seen, op.Greater(j, op.Sub(place, window)))
    else:
        last = op.Reshape(op.Cast(node.inputs[5], to=ir.DataType.INT64), [-1, 1, 1, 1])
        seen = op.LessOrEqual(j, last)
    bias = input_of(node, 10)
    return op.Where(seen, op.number_like(0.0, q) if bias is None else bias, -math.inf)


def _with_sink(op: GradientOps, given: tuple[Any, ...], sink: Gradient, heads: int) -> Any:
    """One more key of zeros with a value of zeros, whose score is the sink, or 0."""
    q, k, v, mask = given
    k, v = (op.Pad(x, [0, 1], None, [1], mode="constant") for x in (k, v))
    row = op.shape(1, heads, op.size(q, 1), 1)
    mask = op.Expand(mask, row)
    column = op.number_like(0.0, q) if sink is None else op.Reshape(sink, [1, heads, 1, 1])
    column = op.Expand(op.cast_like(column, q), op.shape(*op.sizes(mask)[:3], 1))
    return k, v, op.Concat(mask, column, axis=3)
