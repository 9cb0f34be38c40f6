"""What transformers share: attention, masks, positions, named sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.runner.architectures.layers import constant, dropout, width_of
from onward.runner.architectures.network import NetworkBuilder

_HIDDEN = -10000.0  # added to the scores of padding, as in BERT: a row of padding stays finite


def attend(
    net: NetworkBuilder,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    heads: int,
    *,
    causal: bool = False,
    mask: Any = None,
    drop: float = 0.0,
) -> Any:
    """softmax(q k' / sqrt(d) + mask) v by heads; q, k, v and the result are (batch, time, size).

    One Attention node, or, with dropout of the weights, which Attention lacks, its formula: once
    the dropout is gone, Onward's passes make it Attention again.
    """
    op = net.op
    if not drop:
        return op.Attention(
            q, k, v, mask, q_num_heads=heads, kv_num_heads=heads, is_causal=int(causal)
        )
    scale = 1 / math.sqrt(width_of(q) // heads)
    turned = op.Transpose(_split_heads(net, k, heads), perm=[0, 1, 3, 2])
    scores = op.MatMul(op.Mul(_split_heads(net, q, heads), scale), turned)
    if causal:
        scores = op.Add(scores, _causal_mask(net, q))
    if mask is not None:
        scores = op.Add(scores, mask)
    weights = dropout(net, op.Softmax(scores, axis=-1), drop)
    joined = op.Transpose(op.MatMul(weights, _split_heads(net, v, heads)), perm=[0, 2, 1, 3])
    return op.Reshape(joined, np.array([0, 0, width_of(q)]))


def _split_heads(net: NetworkBuilder, x: ir.Value, heads: int) -> Any:
    """(batch, time, size) -> (batch, heads, time, size of a head)"""
    parts = net.op.Reshape(x, np.array([0, 0, heads, width_of(x) // heads]))
    return net.op.Transpose(parts, perm=[0, 2, 1, 3])


def _causal_mask(net: NetworkBuilder, x: ir.Value) -> Any:
    """(time, time): 0 up to the own position, minus infinity after it."""
    op = net.op
    time = op.Shape(x, start=1, end=2)
    square = op.Expand(np.array(True), op.Concat(time, time, axis=0))
    square.shape = ir.Shape(("time", "time"))  # more than is inferred
    return op.Where(op.Trilu(square, upper=0), np.float32(0), np.float32(-np.inf))


def padding_mask(net: NetworkBuilder, kept: ir.Value) -> Any:
    """What is added to the scores, (batch, 1, time, time); `kept` is 1 for tokens, else 0."""
    op = net.op
    added = op.Mul(op.Sub(1.0, op.Cast(kept, to=ir.DataType.FLOAT)), _HIDDEN)
    row = op.Unsqueeze(added, np.array([1, 2]))
    one, time = np.array([1]), op.Shape(kept, start=1, end=2)
    mask = op.Expand(row, op.Concat(one, one, time, one, axis=0))  # ONNX Runtime wants each row
    mask.shape = ir.Shape(("batch", 1, "time", "time"))  # more than is inferred
    return mask


def first_positions(net: NetworkBuilder, table: Any, tokens: ir.Value) -> Any:
    """The rows of a table of positions for a sequence: (time, size)."""
    time = net.op.Shape(tokens, start=1, end=2)
    rows = net.op.Slice(table, np.array([0]), time, np.array([0]))
    rows.shape = ir.Shape(("time", width_of(table)))  # more than is inferred
    return rows


def sinusoids(net: NetworkBuilder, context: int, width: int) -> Any:
    """sin(t / 10000^(2i/width)) and cos of it in turns: (context, width), not trained."""
    steps = np.arange(0, width, 2) / width
    angles = np.arange(context)[:, None] * np.exp(-math.log(10000.0) * steps)
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(context, -1)
    return constant(net, table[:, :width].astype(np.float32))


def token_input(net: NetworkBuilder, name: str = "tokens") -> ir.Value:
    """An input of whole numbers: (batch, time)."""
    return net.op.input(name, "int64", ("batch", "time"))


def sizes_of(preset: Mapping[str, int], **given: int | None) -> list[int]:
    """The sizes given, and those of a preset in the place of None."""
    return [preset[name] if size is None else size for name, size in given.items()]


def check_heads(owner: str, width: int, heads: int) -> None:
    """Refuse a width that the heads cannot share evenly."""
    if width % heads:
        shares = [n for n in range(1, min(width, 64) + 1) if width % n == 0]
        listed = ", ".join(map(str, shares))
        raise OptionError(
            f"{owner}: heads must divide the width of {width} evenly, not {heads}\ngive {listed}"
        )
