"""Gradients of matrix products."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps, rank
from onward.gradients.rule import GradientTable
from onward.passes.value_facts import attribute, input_of

gradient = GradientTable()


@gradient("MatMul")
def matmul(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """da = dy b', db = a' dy"""
    a, b = node.inputs
    assert a is not None and b is not None
    if rank(b) == 2 and rank(a) >= 2:
        return _by_a_matrix(op, a, b, dy)
    wide_a, wide_b = a, b
    if rank(a) == 1:
        wide_a, dy = op.Unsqueeze(a, [0]), op.Unsqueeze(dy, [-1 if rank(b) == 1 else -2])
    if rank(b) == 1:
        wide_b, dy = op.Unsqueeze(b, [1]), op.Unsqueeze(dy, [-1])
    da = op.sum_to(op.MatMul(dy, _transposed(op, wide_b)), wide_a)
    db = op.sum_to(op.MatMul(_transposed(op, wide_a), dy), wide_b)
    return (
        op.Squeeze(da, [0]) if rank(a) == 1 else da,
        op.Squeeze(db, [1]) if rank(b) == 1 else db,
    )


def _by_a_matrix(op: GradientOps, a: ir.Value, b: ir.Value, dy: ir.Value) -> Any:
    """Rows in batches times one matrix: one matrix product of all rows, without a sum after it."""
    if rank(a) == 2:
        return op.Gemm(dy, b, transB=1), op.Gemm(a, dy, transA=1)
    rows, dys = op.Flatten(a, axis=rank(a) - 1), op.Flatten(dy, axis=rank(a) - 1)
    da = op.reshape_as(op.Gemm(dys, b, transB=1), a)
    return da, op.Gemm(rows, dys, transA=1)


def _transposed(op: GradientOps, x: ir.Value) -> ir.Value:
    """Each matrix of a batch transposed."""
    axes = list(range(rank(x)))
    return op.Transpose(x, perm=[*axes[:-2], axes[-1], axes[-2]])


@gradient("Gemm")
def gemm(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y = alpha a b + beta c: da = alpha dy b', db = alpha a' dy, dc = beta dy summed

    Where a is read transposed, da is transposed too: (alpha dy b')' = alpha b dy'.
    """
    a, b, c = node.inputs[0], node.inputs[1], input_of(node, 2)
    alpha, beta = attribute(node, "alpha"), attribute(node, "beta")
    turned_a, turned_b = attribute(node, "transA"), attribute(node, "transB")
    if turned_a:
        da = op.Gemm(b, dy, alpha=alpha, transA=turned_b, transB=1)
    else:
        da = op.Gemm(dy, b, alpha=alpha, transB=1 - turned_b)
    if turned_b:
        db = op.Gemm(dy, a, alpha=alpha, transA=1, transB=turned_a)
    else:
        db = op.Gemm(a, dy, alpha=alpha, transA=1 - turned_a)
    if c is None:
        return da, db
    dc = op.sum_to(dy, c)
    return da, db, dc if beta == 1 else op.Mul(dc, beta)


@gradient("Det")
def det(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy cof(x), cof(x)[i, j] = det(x with row i replaced by the unit vector of j)

    Correct for singular matrices too, unlike det(x) inverse(x)'. It takes n^2 determinants: the
    Faddeev-LeVerrier algorithm has n matrix products, but for n = 32 no digit is right in float32.
    """
    (x,) = node.inputs
    assert x is not None
    same = equal_places(op, op.size(x, -1))
    row, unit = op.Unsqueeze(same, [1, 3]), op.Unsqueeze(same, [0, 2])  # (i, j, row, column)
    replaced = op.Where(row, op.cast_like(unit, x), op.Unsqueeze(x, [-3, -4]))
    return op.Mul(op.Unsqueeze(dy, [-1, -2]), op.Det(replaced))


def equal_places(op: GradientOps, size: int | ir.Value) -> ir.Value:
    """true where row = column, of a square matrix"""
    places = op.arange(size)
    return op.Equal(op.Unsqueeze(places, [1]), places)
