"""Attention from matrix products and a softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.graph.builder import OpBuilder
from onward.passes.pipelines import PREPARE, inference
from tests.passes.one_graph import Build, built, left_after

Q, K, V = (2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 3)
NAMED = [("b", 4, "t", 8), ("b", 4, "s", 8), ("b", 4, "s", 3)]


def scores(op: OpBuilder, q: Any, k: Any) -> Any:
    return op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2]))


def plain(op: OpBuilder, q: Any, k: Any, v: Any) -> Any:
    return op.MatMul(op.Softmax(op.Div(scores(op, q, k), 2.8284), axis=-1), v)


def scaled_before(op: OpBuilder, q: Any, k: Any, v: Any) -> Any:
    """As torch.onnx writes scaled_dot_product_attention."""
    keys = op.Mul(op.Transpose(k, perm=[0, 1, 3, 2]), 0.5946)
    return op.MatMul(op.Softmax(op.MatMul(op.Mul(q, 0.5946), keys), axis=-1), v)


def guarded(op: OpBuilder, q: Any, k: Any, v: Any) -> Any:
    weights = op.Softmax(op.Mul(scores(op, q, k), 0.35), axis=-1)
    return op.MatMul(op.Where(op.IsNaN(weights), np.float32(0), weights), v)


def heads_last(op: OpBuilder, q: Any, k: Any, v: Any) -> Any:
    """Keys come as (batch, time, heads, size) and are transposed once."""
    back = op.Transpose(k, perm=[0, 2, 1, 3])
    keys = op.Transpose(back, perm=[0, 2, 3, 1])
    return op.MatMul(op.Softmax(op.Mul(op.MatMul(q, keys), 0.35), axis=3), v)


@pytest.mark.parametrize("build", [plain, scaled_before, guarded, heads_last])
@pytest.mark.parametrize("shapes", [[Q, K, V], NAMED], ids=["static", "named"])
def test_softmax_attention_becomes_attention(build: Build, shapes: Any) -> None:
    assert "Attention" in left_after(built(build, *shapes))


@pytest.mark.parametrize("shape", [(5, 6), (1, 1, 5, 6), (2, 1, 1, 6), (2, 4, 5, 6)])
def test_added_mask_is_fused(shape: Any) -> None:
    def masked(op: OpBuilder, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return op.MatMul(op.Softmax(op.Add(op.Div(scores(op, q, k), 2.83), mask), axis=-1), v)

    assert left_after(built(masked, Q, K, V, shape)) == ["Attention"]


@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("number", [-np.inf, -1e9])
def test_where_mask_is_fused(hides: bool, number: float) -> None:
    keep = np.tril(np.ones((5, 6), bool))

    def masked(op: OpBuilder, q: Any, k: Any, v: Any) -> Any:
        value, found = np.float32(number), op.Mul(scores(op, q, k), 0.35)
        chosen = op.Where(~keep, value, found) if hides else op.Where(keep, found, value)
        return op.MatMul(op.Softmax(chosen, axis=-1), v)

    assert left_after(built(masked, Q, K, V)) == ["Attention"]


def test_a_mask_of_zero_and_minus_infinity_becomes_boolean() -> None:
    keep = np.tril(np.ones((5, 6), bool))

    def masked(op: OpBuilder, q: Any, k: Any, v: Any, mask: Any) -> Any:
        added = op.Where(op.Less(mask, 0.5), np.float32(0), np.float32(-np.inf))
        found = op.Softmax(op.Add(op.Mul(scores(op, q, k), 0.35), added), axis=-1)
        return op.MatMul(op.Where(op.IsNaN(found), np.float32(0), found), v)

    del keep
    model = inference(2)(PREPARE(built(masked, Q, K, V, (5, 6))))
    (node,) = [node for node in model.graph if node.op_type == "Attention"]
    assert node.inputs[3] is not None and node.inputs[3].dtype == ir.DataType.BOOL
    assert "Attention" in left_after(built(masked, Q, K, V, (5, 6)))


def test_softmax_in_higher_precision_is_kept() -> None:
    def wide(op: OpBuilder, q: Any, k: Any, v: Any) -> Any:
        found = op.Cast(op.Mul(scores(op, q, k), 0.35), to=ir.DataType.FLOAT)
        return op.MatMul(op.Cast(op.Softmax(found, axis=-1), to=ir.DataType.FLOAT16), v)

    model = built(wide, Q, K, V, dtype="float16")
    assert left_after(model, rtol=5e-3) == ["Attention"]
    (node,) = inference(2)(PREPARE(model)).graph
    assert node.attributes["softmax_precision"].as_int() == ir.DataType.FLOAT


def weights_returned(op: OpBuilder, q: Any, k: Any, v: Any) -> Any:
    weights = op.Softmax(op.Mul(scores(op, q, k), 0.35), axis=-1)
    return op.MatMul(weights, v), weights


def other_axis(op: OpBuilder, q: Any, k: Any, v: Any) -> Any:
    return op.MatMul(op.Softmax(scores(op, q, k), axis=2), v)


def scaled_by_heads(op: OpBuilder, q: Any, k: Any, v: Any) -> Any:
    factors = np.arange(1, 5, dtype=np.float32).reshape(4, 1, 1)
    return op.MatMul(op.Softmax(op.Mul(scores(op, q, k), factors), axis=-1), v)


def scaled_after_mask(op: OpBuilder, q: Any, k: Any, v: Any) -> Any:
    mask = np.ones((5, 6), np.float32)
    return op.MatMul(op.Softmax(op.Mul(op.Add(scores(op, q, k), mask), 0.5), axis=-1), v)


def short_mask(op: OpBuilder, q: Any, k: Any, v: Any) -> Any:
    mask = np.arange(5, dtype=np.float32).reshape(5, 1)
    return op.MatMul(op.Softmax(op.Add(scores(op, q, k), mask), axis=-1), v)


def not_transposed(op: OpBuilder, q: Any, k: Any, v: Any) -> Any:
    return op.MatMul(op.Softmax(op.MatMul(q, op.Reshape(k, [2, 4, 8, 6])), axis=-1), v)


@pytest.mark.parametrize(
    "build",
    [weights_returned, other_axis, scaled_by_heads, scaled_after_mask, short_mask, not_transposed],
)
def test_forms_that_attention_lacks_stay(build: Build) -> None:
    assert "Attention" not in left_after(built(build, Q, K, V))


def test_heads_that_broadcast_stay() -> None:
    assert "Attention" not in left_after(built(plain, Q, (2, 1, 6, 8), (2, 1, 6, 3)))
    assert "Attention" not in left_after(built(plain, Q, (1, 4, 6, 8), (1, 4, 6, 3)))
