"""Attention as exporters write it out: one layer each, for any batch and length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.builder import OpBuilder

HEADS, SIZE, HIDDEN = 4, 6, 24
SCALE = SIZE**-0.5
LOWEST = np.float32(np.finfo(np.float32).min)
NOTHING = np.float32(0)


def heads(op: Any, x: ir.Value, count: int = HEADS) -> ir.Value:
    """(batch, length, hidden) -> (batch, heads, length, size)"""
    return op.Transpose(op.Reshape(x, [0, 0, count, SIZE]), perm=[0, 2, 1, 3])


def causal(op: Any, ids: ir.Value, kept: Any, other: Any) -> ir.Value:
    """A choice of numbers: (length, length)"""
    j = op.Range(0, op.Squeeze(op.Shape(ids, start=1, end=2), [0]), 1)
    return op.Where(op.LessOrEqual(j, op.Unsqueeze(j, [1])), kept, other)


def padding(op: Any, seen: ir.Value) -> ir.Value:
    """What is added to hide keys, for each query alike."""
    size = op.Reshape(op.Shape(seen, start=0, end=1), [-1])
    rows = op.Reshape(op.Cast(seen, to=1), op.Concat(size, [1], [1], [-1], axis=0))
    return op.Mul(op.Sub(np.float32(1), rows), LOWEST)


def eager(op: Any, q: Any, k: Any, v: Any, ids: Any, seen: Any) -> ir.Value:
    """A causal mask is added, by code of transformers."""
    scores = op.Mul(op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])), np.float32(SCALE))
    scores = op.Add(scores, causal(op, ids, NOTHING, LOWEST))
    return op.MatMul(op.Softmax(scores, axis=-1), v)


def scaled(op: Any, q: Any, k: Any, v: Any, ids: Any, seen: Any) -> ir.Value:
    """Both are scaled, NaN is caught; scaled_dot_product_attention by torch's exporter."""
    root = np.float32(np.sqrt(SCALE))
    keys = op.Mul(op.Transpose(k, perm=[0, 1, 3, 2]), root)
    mask = causal(op, ids, NOTHING, -np.float32(np.inf))
    p = op.Softmax(op.Add(op.MatMul(op.Mul(q, root), keys), mask), axis=-1)
    return op.MatMul(op.Where(op.IsNaN(p), NOTHING, p), v)


def chosen(op: Any, q: Any, k: Any, v: Any, ids: Any, seen: Any) -> ir.Value:
    """A mask chooses; a quotient scales."""
    scores = op.Div(op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])), np.float32(1 / SCALE))
    scores = causal(op, ids, scores, np.float32(-1e9))
    return op.MatMul(op.Softmax(scores, axis=-1), v)


def padded(op: Any, q: Any, k: Any, v: Any, ids: Any, seen: Any) -> ir.Value:
    """BERT's."""
    scores = op.Div(op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])), np.float32(1 / SCALE))
    length = op.Shape(ids, start=1, end=2)
    rows = op.Expand(padding(op, seen), op.Concat([1, 1], length, [1], axis=0))
    return op.MatMul(op.Softmax(op.Add(scores, rows), axis=-1), v)


def plain(op: Any, q: Any, k: Any, v: Any, ids: Any, seen: Any) -> ir.Value:
    """No mask."""
    scores = op.MatMul(op.Mul(q, np.float32(SCALE)), op.Transpose(k, perm=[0, 1, 3, 2]))
    return op.MatMul(op.Softmax(scores, axis=-1), v)


def repeated(op: Any, x: ir.Value, groups: int) -> ir.Value:
    """Each head once for every query head that reads it."""
    batch, length = (op.Shape(x, start=axis, end=axis + 1) for axis in (0, 2))
    shared = HEADS // groups
    shape = op.Concat(batch, [shared, groups], length, [SIZE], axis=0)
    spread = op.Expand(op.Unsqueeze(x, [2]), shape)
    return op.Reshape(spread, op.Concat(batch, [HEADS], length, [SIZE], axis=0))


WRITERS: dict[str, Callable[..., ir.Value]] = {
    writer.__name__: writer for writer in (eager, scaled, chosen, padded, plain)
}


def layer(writer: Callable[..., ir.Value], *, groups: int = 1) -> ir.Model:
    """x (batch, length, hidden) through one attention with weights wq, wk, wv."""
    rng = np.random.default_rng(0)
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", "length", HIDDEN))
    ids, seen = (op.input(n, "int64", ("batch", "length")) for n in ("ids", "seen"))

    def project(name: str, width: int) -> ir.Value:
        weight = rng.normal(0, 0.3, (HIDDEN, width)).astype(np.float32)
        return op.MatMul(x, op.initializer(name, weight))

    q = heads(op, project("wq", HIDDEN))
    shared = HEADS // groups
    k, v = (heads(op, project(name, shared * SIZE), shared) for name in ("wk", "wv"))
    if groups > 1:
        k, v = repeated(op, k, groups), repeated(op, v, groups)
    y = writer(op, q, k, v, ids, seen)
    return op.model(y=op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, HIDDEN]))


def feeds(batch: int = 2, length: int = 7) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    seen = (rng.random((batch, length)) > 0.3).astype(np.int64)
    seen[:, 0] = 1
    return {
        "x": rng.normal(size=(batch, length, HIDDEN)).astype(np.float32),
        "ids": rng.integers(0, 9, (batch, length)),
        "seen": seen,
    }
