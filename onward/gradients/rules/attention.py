"""Gradients of softmax attention.

The probabilities p are computed again from q and k: the forward node needs no other outputs. Query
heads that share a key head are rows of one matrix product, so that no key is repeated.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.functions import composite
from onward.gradients.gradient_ops import GradientOps, rank
from onward.gradients.rule import Gradient, GradientTable, absent
from onward.gradients.rules.norm import wide
from onward.passes.value_facts import attribute, dims, input_of

gradient = GradientTable()

_HIDDEN = -math.inf


@gradient("Attention")
@absent
@composite("AttentionGrad", inputs=7, outputs=4)
def attention(op: GradientOps, node: ir.Node, dy: Any, *others: Any) -> Any:
    """dv = p' dy, ds = p (dy v' - sum(dy y)), dq = scale ds k, dk = scale ds' q

    s = softcap(scale q k') + mask, p = softmax(s); dmask is ds, summed to the mask's shape.
    """
    dkey, dvalue, dscores = [_with_rank_4(d) for d in (*others, None, None, None)][:3]
    q, k, v = _heads(op, node)
    scale, softcap = _scale(op, node, q), attribute(node, "softcap")
    scaled = op.Mul(q, scale)
    scores = products(op, scaled, k)
    capped = op.Tanh(op.Div(scores, softcap)) if softcap else None
    if capped is not None:
        scores = op.Mul(capped, softcap)
    bias, seen = _mask(op, node, q, k)
    p = _softmax(op, node, scores if bias is None else op.Add(scores, bias))

    score_gradients: dict[int, Gradient] = {attribute(node, "qk_matmul_output_mode"): dscores}
    dp, ds = score_gradients.get(3), None
    if dp is not None:
        dp = op.cast_like(dp if seen is None else op.Mul(dp, seen), p)
        total = op.ReduceSum(op.Mul(dp, p), [-1], keepdims=1)
        ds = op.Mul(p, op.Sub(dp, total))
    if dy is not None:
        total = op.cast_like(_row_sums(op, node, dy), p)
        dy = split_heads(op, dy, attribute(node, "q_num_heads"))
        dy = dy if seen is None else op.Mul(dy, seen)
        dp = op.cast_like(products(op, dy, op.cast_like(v, q)), p)
        ds = op.plus(ds, op.Mul(p, op.Sub(dp, total)))
    ds = op.plus(None if ds is None else op.cast_like(ds, q), score_gradients.get(2))
    dmask = _mask_gradient(op, input_of(node, 3), ds)
    ds = op.plus(ds, score_gradients.get(1))
    if capped is not None and ds is not None:  # tanh' = 1 - tanh^2
        ds = op.Mul(ds, op.Sub(1.0, op.Mul(capped, capped)))
    ds = op.plus(ds, score_gradients.get(0))

    dq = dk = dv = None
    if ds is not None:
        rows = grouped(op, ds, k)
        dq = op.Mul(op.MatMul(rows, k), scale)
        dq = dq if rows is ds else op.reshape_as(dq, q)
        dk = op.MatMul(transposed(op, rows), grouped(op, scaled, k))
    if dy is not None:
        rows = grouped(op, op.cast_like(p, q), k)
        dv = op.cast_like(op.MatMul(transposed(op, rows), grouped(op, dy, k)), v)
    past_k, dk = _split_past(op, node, 4, op.plus(dk, dkey))
    past_v, dv = _split_past(op, node, 5, op.plus(dv, dvalue))
    dq, dk, dv = (_as_given(op, d, node.inputs[i]) for i, d in enumerate((dq, dk, dv)))
    return dq, dk, dv, dmask, past_k, past_v


# -- heads -----------------------------------------------------------------------------------


def _heads(op: GradientOps, node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
    """q, k and v as (batch, heads, length, size); past keys and values come first."""
    queries, keys = attribute(node, "q_num_heads"), attribute(node, "kv_num_heads")
    q = split_heads(op, node.inputs[0], queries)
    k, v = (split_heads(op, x, keys) for x in node.inputs[1:3])
    for i, past in enumerate((input_of(node, 4), input_of(node, 5))):
        if past is not None:
            present = node.outputs[1 + i] if len(node.outputs) > 1 + i else None
            if present is None or not present.name:
                present = op.Concat(past, (k, v)[i], axis=2)
            k, v = (_with_rank_4(present), v) if i == 0 else (k, _with_rank_4(present))
    return q, k, v


def _with_rank_4(x: Any) -> Any:
    """A value with rank 4, also if inference did not find its rank."""
    if x is not None and x.shape is None:
        x.shape = ir.Shape([None] * 4)
    return x


def split_heads(op: GradientOps, x: Any, heads: int | None) -> ir.Value:
    """(batch, length, heads * size) -> (batch, heads, length, size)"""
    if rank(x) == 4 or heads is None:
        return x
    return op.Transpose(_heads_axis(op, x, heads), perm=[0, 2, 1, 3])


def _heads_axis(op: GradientOps, x: Any, heads: int) -> ir.Value:
    """(batch, length, heads * size) -> (batch, length, heads, size)"""
    batch, length, hidden = op.sizes(x)
    size = hidden // heads if isinstance(hidden, int) else op.Div(hidden, heads)
    return op.Reshape(x, op.shape(batch, length, heads, size), allowzero=1)


def _as_given(op: GradientOps, d: Gradient, x: Any) -> Gradient:
    """A gradient of heads in the shape of the node's input."""
    if d is None or rank(x) == 4:
        return d
    return op.reshape_as(op.Transpose(d, perm=[0, 2, 1, 3]), x)


def _split_past(
    op: GradientOps, node: ir.Node, index: int, d: Gradient
) -> tuple[Gradient, Gradient]:
    """The gradients of the past and of the new keys or values."""
    past = input_of(node, index)
    if past is None or d is None:
        return None, d
    length = op.shape(op.size(past, 2))
    new = op.Slice(d, length, [np.iinfo(np.int64).max], [2])
    return op.Slice(d, [0], length, [2]), new


def grouped(op: GradientOps, x: ir.Value, k: ir.Value) -> ir.Value:
    """(batch, heads, length, size) with k's heads: queries of one key head are merged as rows"""
    ours, theirs = (dims(each) or (None, None) for each in (x, k))
    if ours[1] == theirs[1] and ours[1] is not None:
        return x
    batch, heads, length, size = op.sizes(x)
    shared = op.size(k, 1)
    if isinstance(heads, int) and isinstance(shared, int):
        rows = op.product(length, heads // shared)
    else:
        rows = op.Div(op.shape(op.product(length, heads)), op.shape(shared))
    return op.Reshape(x, op.shape(batch, shared, rows, size), allowzero=1)


def products(op: GradientOps, x: ir.Value, k: ir.Value) -> ir.Value:
    """x k', each head of x with the key head that it reads"""
    rows = grouped(op, x, k)
    y: ir.Value = op.MatMul(rows, transposed(op, k))
    if rows is x:
        return y
    shape = op.shape(*op.sizes(x)[:3], op.size(k, 2))
    return op.Reshape(y, shape, allowzero=1)


def transposed(op: GradientOps, x: ir.Value) -> ir.Value:
    return op.Transpose(x, perm=[0, 1, 3, 2])


# -- scores ----------------------------------------------------------------------------------


def _scale(op: GradientOps, node: ir.Node, q: ir.Value) -> Any:
    given = attribute(node, "scale")
    return root_scale(op, q) if given is None else given


def root_scale(op: GradientOps, q: ir.Value) -> Any:
    """1 / sqrt(size of a head)"""
    size = op.size(q, -1)
    if isinstance(size, int):
        return 1 / math.sqrt(max(size, 1))
    return op.Reciprocal(op.Sqrt(op.number(size, q)))


def _softmax(op: GradientOps, node: ir.Node, scores: ir.Value) -> ir.Value:
    """p, in `softmax_precision`; by default, half precision is computed in float32."""
    precision = attribute(node, "softmax_precision")
    scores = wide(op, scores) if precision is None else _cast(op, scores, precision)
    return op.Softmax(scores, axis=-1)


def _cast(op: GradientOps, x: ir.Value, to: int) -> ir.Value:
    return x if x.dtype == to else op.Cast(x, to=to)


def _row_sums(op: GradientOps, node: ir.Node, dy: ir.Value) -> ir.Value:
    """sum(dy y) of each query, which equals sum(p dp): (batch, heads, length, 1)"""
    both = op.Mul(dy, node.outputs[0])
    if rank(dy) == 4:
        return op.ReduceSum(both, [-1], keepdims=1)
    heads = _heads_axis(op, both, attribute(node, "q_num_heads"))
    return op.Transpose(op.ReduceSum(heads, [-1], keepdims=1), perm=[0, 2, 1, 3])


# -- masks -----------------------------------------------------------------------------------


def _mask(op: GradientOps, node: ir.Node, q: ir.Value, k: ir.Value) -> tuple[Gradient, Gradient]:
    """The bias of the scores, and 1 for queries that see a key, else 0.

    A query that sees no key has no gradient. Its scores get no bias: a softmax of only -inf
    would be NaN.
    """
    mask, filled = input_of(node, 3), input_of(node, 6)
    bias = None if mask is None else _padded(op, _added(op, mask, q), k)
    visible = _visible(op, node, q, k)
    if visible is not None:
        bias = op.Where(visible, op.number_like(0.0, q) if bias is None else bias, _HIDDEN)
    if bias is None or (
        mask is None and filled is None and attribute(node, "left_window_size") < 0
    ):
        return bias, None
    sees = op.Greater(op.ReduceMax(bias, [-1], keepdims=1), _HIDDEN)
    return op.Where(sees, bias, 0.0), op.cast_like(sees, q)


def _added(op: GradientOps, mask: ir.Value, q: ir.Value) -> ir.Value:
    """The mask as numbers: -inf where a boolean mask is false."""
    if mask.dtype != ir.DataType.BOOL:
        return op.cast_like(mask, q)
    return op.Where(mask, op.number_like(0.0, q), _HIDDEN)


def _padded(op: GradientOps, bias: ir.Value, k: ir.Value) -> ir.Value:
    """The bias padded to all keys; keys beyond the mask's end are masked."""
    if _reaches(bias, k, 2):
        return bias
    missing = op.Sub(op.shape(op.size(k, 2)), op.shape(op.size(bias, -1)))
    pads = op.Concat(np.zeros(1, np.int64), missing, axis=0)
    return op.Pad(bias, pads, op.number_like(_HIDDEN, bias), [-1], mode="constant")


def _reaches(mask: ir.Value, x: ir.Value, axis: int) -> bool:
    """Whether the mask is known to cover all keys, which are x's elements along an axis."""
    ours, theirs = dims(mask), dims(x)
    return ours is not None and theirs is not None and ours[-1] == theirs[axis] is not None


def _visible(op: GradientOps, node: ir.Node, q: ir.Value, k: ir.Value) -> Gradient:
    """Which keys j a query at p = i + offset may see: p - left <= j <= p + right"""
    left, right = attribute(node, "left_window_size"), attribute(node, "right_window_size")
    right = 0 if attribute(node, "is_causal") else right
    filled, past = input_of(node, 6), input_of(node, 4)
    j = op.arange(op.size(k, 2))
    seen: Gradient = None
    if filled is not None:
        filled = op.Unsqueeze(filled, [1, 2, 3])
        seen = op.Less(j, filled)
    if left < 0 and right < 0:
        return seen
    p = op.Unsqueeze(op.arange(op.size(q, 2)), [1])
    if past is not None:
        p = op.Add(p, op.shape(op.size(past, 2)))
    elif filled is not None:
        p = op.Add(p, op.Sub(filled, op.shape(op.size(q, 2))))
    if left >= 0:
        seen = _both(op, seen, op.GreaterOrEqual(j, op.Sub(p, left)))
    if right >= 0:
        seen = _both(op, seen, op.LessOrEqual(j, op.Add(p, right) if right else p))
    return seen


def _both(op: GradientOps, a: Gradient, b: ir.Value) -> ir.Value:
    return b if a is None else op.And(a, b)


def _mask_gradient(op: GradientOps, mask: ir.Value | None, ds: Gradient) -> Gradient:
    """ds of the keys that the mask covers, summed to its shape."""
    if mask is None or ds is None or mask.dtype is None or not mask.dtype.is_floating_point():
        return None
    if not _reaches(mask, ds, 3):
        ds = op.Slice(ds, [0], op.shape(op.size(mask, -1)), [3])
    return op.cast_like(op.sum_to(ds, mask), mask)
