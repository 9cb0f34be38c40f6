"""Cases of rules/linear.py and rules/einsum.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, normal


def _matmul(note: str, a: Any, b: Any, **options: Any) -> Case:
    return Case("MatMul", lambda op, a, b: op.MatMul(a, b), {"a": a, "b": b}, note, **options)


def _gemm(note: str, a: Any, b: Any, c: Any = None, **attributes: Any) -> Case:
    feeds = {"a": a, "b": b} if c is None else {"a": a, "b": b, "c": c}
    return Case("Gemm", lambda op, a, b, c=None: op.Gemm(a, b, c, **attributes), feeds, note)


def _einsum(equation: str, *operands: Any, note: str = "", **options: Any) -> Case:
    feeds = {f"x{i}": operand for i, operand in enumerate(operands)}
    return Case(
        "Einsum",
        lambda op, **xs: op.Einsum(*xs.values(), equation=equation),
        feeds,
        f"{equation} {note}".strip(),
        **options,
    )


_SINGULAR = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.5, -1.0, 2.0]])  # rank 2

CASES = [
    _matmul("matrices", normal(2, 3), normal(3, 4)),
    _matmul("rows times a matrix", normal(2, 5, 3), normal(3, 4)),
    _matmul("four axes times a matrix", normal(2, 2, 5, 3), normal(3, 4)),
    _matmul("a matrix times a batch", normal(2, 3), normal(5, 3, 4)),
    _matmul("batches", normal(2, 2, 3), normal(2, 3, 4)),
    _matmul("batches broadcast both ways", normal(2, 1, 2, 3), normal(5, 3, 4)),
    _matmul("vectors", normal(3), normal(3, seed=1)),
    _matmul("vector times matrix", normal(3), normal(3, 4)),
    _matmul("matrix times vector", normal(2, 3), normal(3)),
    _matmul("vector times batch", normal(3), normal(2, 5, 3, 4)),
    _matmul("batch times vector", normal(2, 5, 4, 3), normal(3)),
    _matmul("empty rows", normal(0, 3), normal(3, 4)),
    _matmul("empty batch", normal(0, 2, 3), normal(3, 4)),
    _matmul("empty sum", normal(2, 0), normal(0, 4)),
    Case("MatMul", lambda op, a: op.MatMul(a, a), {"a": normal(3, 3)}, "by itself"),
    _gemm("plain", normal(2, 3), normal(3, 4), normal(4)),
    _gemm("transA", normal(3, 2), normal(3, 4), normal(2, 4), transA=1),
    _gemm("transB", normal(2, 3), normal(4, 3), normal(2, 1), transB=1),
    _gemm(
        "both, alpha, beta",
        normal(3, 2),
        normal(4, 3),
        normal(),
        transA=1,
        transB=1,
        alpha=0.5,
        beta=2.0,
    ),
    _gemm("without c", normal(2, 3), normal(3, 4), alpha=3.0),
    _gemm("one row", normal(1, 3), normal(3, 4), normal(1, 4)),
    _gemm("empty batch", normal(0, 3), normal(4, 3), normal(4), transB=1),
    _einsum("ij,jk->ik", normal(2, 3), normal(3, 4)),
    _einsum("ij->ji", normal(2, 3)),
    _einsum("ij->", normal(2, 3)),
    _einsum("ij->i", normal(2, 3)),
    _einsum("ii->i", normal(3, 3)),
    _einsum("ii->", normal(3, 3)),
    _einsum("iij,j->ij", normal(2, 2, 3), normal(3)),
    _einsum("ba,a", normal(2, 3), normal(3), note="implicit"),
    _einsum("b...a,a...", normal(2, 4, 3), normal(3, 4), note="implicit"),
    _einsum(
        "...ij,...jk->...ik",
        normal(2, 1, 2, 3),
        normal(1, 5, 3, 4),
        note="broadcast",
        dynamic=False,  # ONNX infers that a size with a name is never 1
    ),
    _einsum("...i,i...->...", normal(2, 3), normal(3, 2), note="summed"),
    _einsum("bhid,bhjd->bhij", normal(2, 2, 3, 4), normal(2, 2, 5, 4)),
    _einsum("i,j,k->ijk", normal(2), normal(3), normal(4)),
    _einsum("ij,jk,kl->il", normal(2, 3), normal(3, 4), normal(4, 2)),
    _einsum("ij,k->k", normal(2, 3), normal(4), note="an axis that only one has"),
    _einsum(",i->i", normal(), normal(3)),
    _einsum("ij,ij->ij", normal(2, 3), normal(1, 3), note="size 1 broadcasts"),
    Case("Einsum", lambda op, x: op.Einsum(x, x, equation="i,i->"), {"x": normal(3)}, "by itself"),
    Case("Det", lambda op, x: op.Det(x), {"x": normal(3, 3)}),
    Case("Det", lambda op, x: op.Det(x), {"x": normal(2, 2, 4, 4)}, "batch"),
    Case("Det", lambda op, x: op.Det(x), {"x": normal(2, 1, 1)}, "of one element"),
    # torch divides by a zero determinant here
    Case("Det", lambda op, x: op.Det(x), {"x": _SINGULAR}, "singular", autograd=False),
]
