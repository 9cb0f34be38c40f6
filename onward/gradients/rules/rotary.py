"""Gradients of rotary embeddings: pairs (a, b) of a head, rotated by angles (cos, sin)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps, rank
from onward.gradients.rule import GradientTable
from onward.gradients.rules.index import scatter_add
from onward.passes.value_facts import attribute, input_of

gradient = GradientTable()

_END = np.iinfo(np.int64).max


@gradient("RotaryEmbedding")
def rotary_embedding(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy turned back, by cos and -sin; dcos = da a + db b, dsin = db a - da b, of the pairs

    Each summed over the heads, and added up where `position_ids` read one angle many times.
    """
    x, cos, sin = node.inputs[:3]
    positions = input_of(node, 3)
    assert x is not None and cos is not None and sin is not None
    names = ("interleaved", "num_heads", "rotary_embedding_dim")
    options = {n: attribute(node, n) for n in names if attribute(node, n) is not None}
    given = [dy, cos, op.Neg(sin), *node.inputs[3:]]
    (dx,) = op.typed("RotaryEmbedding", given, options, [x])
    a, b = pairs(op, x, cos, options)
    da, db = pairs(op, dy, cos, options)
    heads = [1 if rank(x) == 4 else 2]
    dcos = op.ReduceSum(op.Add(op.Mul(da, a), op.Mul(db, b)), heads, keepdims=0)
    dsin = op.ReduceSum(op.Sub(op.Mul(db, a), op.Mul(da, b)), heads, keepdims=0)
    return dx, gathered(op, dcos, cos, positions), gathered(op, dsin, sin, positions)


def pairs(op: GradientOps, x: Any, cos: ir.Value, options: dict[str, int]) -> Any:
    """The first and the second element of each pair: adjacent ones, or one of each half."""
    if rank(x) == 3:  # (batch, length, heads, size)
        x = op.Reshape(x, op.shape(0, 0, options["num_heads"], -1))
    half = op.size(cos, -1)
    turned = op.shape(op.product(half, 2))
    if options.get("interleaved"):
        return (op.Slice(x, [start], turned, [3], [2]) for start in (0, 1))
    middle = op.shape(half)
    return op.Slice(x, [0], middle, [3]), op.Slice(x, middle, turned, [3])


def gathered(op: GradientOps, d: ir.Value, cache: ir.Value, positions: ir.Value | None) -> ir.Value:
    """The gradient of the table of angles that positions index."""
    if positions is None:
        return op.sum_to(d, cache)
    return scatter_add(op, op.sizes(cache), positions, d, 0)
