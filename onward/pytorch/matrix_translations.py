"""Translations of determinants, inverses, systems of equations and diagonals to ONNX.

ONNX has no operator for the factors of a matrix. Matrices of up to three rows have formulas; those
of larger ones would be neither precise nor fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import opset18

from onward.pytorch.fallback import CannotCapture
from onward.pytorch.reduction_translations import vector_norm

op: Any = opset18
_aten = torch.ops.aten


def _is_small(x: Any) -> bool:
    rows = x.shape[-1]
    return isinstance(rows, int) and 1 <= rows <= 3


def _entries(x: Any) -> list[list[Any]]:
    """The entries of the matrices, each of shape (...)"""
    n = x.shape[-1]
    rows = [op.Gather(x, i, axis=-2) for i in range(n)]
    return [[op.Gather(row, j, axis=-1) for j in range(n)] for row in rows]


def _adjugate(a: list[list[Any]]) -> list[list[Any]]:
    """The transposed cofactors"""
    n = len(a)
    if n == 1:
        return [[op.CastLike(1.0, a[0][0])]]
    if n == 2:
        return [[a[1][1], op.Neg(a[0][1])], [op.Neg(a[1][0]), a[0][0]]]

    def cofactor(i: int, j: int) -> Any:
        rows, columns = [(k + 1) % 3 for k in (i, i + 1)], [(k + 1) % 3 for k in (j, j + 1)]
        (r, s), (t, u) = rows, columns
        return op.Sub(op.Mul(a[r][t], a[s][u]), op.Mul(a[r][u], a[s][t]))

    return [[cofactor(j, i) for j in range(3)] for i in range(3)]


def _determinant(a: list[list[Any]], adjugate: list[list[Any]]) -> Any:
    terms = [op.Mul(a[0][k], adjugate[k][0]) for k in range(len(a))]
    total = terms[0]
    for term in terms[1:]:
        total = op.Add(total, term)
    return total


def _det(x: Any) -> Any:
    """The first row times its cofactors; of larger matrices ONNX's operator"""
    if not _is_small(x):
        return op.Det(x)
    a = _entries(x)
    return _determinant(a, _adjugate(a))


def _det_with_factors(x: Any) -> tuple[Any, ...]:
    return _det(x), *_unread(x, 2)


def _slogdet(x: Any) -> tuple[Any, ...]:
    """The sign of the determinant, and the logarithm of its size"""
    det = _det(x)
    return op.Sign(det), op.Log(op.Abs(det)), *_unread(x, 2)


def _unread(x: Any, count: int) -> list[Any]:
    """Results that only torch's own gradient reads: the factors of the matrix"""
    return [op.Identity(x) for _ in range(count)]


def _inverse(x: Any, function: str = "torch.linalg.inv") -> Any:
    """The adjugate over the determinant; infinite or NaN, not an error, where there is none"""
    if not _is_small(x):
        raise CannotCapture(f"{function} of matrices with more than 3 rows has no ONNX operators")
    a = _entries(x)
    adjugate = _adjugate(a)
    det = _determinant(a, adjugate)
    rows = [op.Concat(*(op.Unsqueeze(each, [-1]) for each in row), axis=-1) for row in adjugate]
    if len(a) == 1:
        return op.Reciprocal(x)
    matrix = op.Concat(*(op.Unsqueeze(row, [-2]) for row in rows), axis=-2)
    return op.Div(matrix, op.Unsqueeze(det, [-2, -1]))


def _inv(x: Any, check_errors: bool = False) -> tuple[Any, ...]:
    return _inverse(x), *_unread(x, 1)


def _solve_with_factors(
    a: Any, b: Any, left: bool = True, check_errors: bool = False
) -> tuple[Any, ...]:
    return _solve(a, b, left), *_unread(a, 3)


def _solve(a: Any, b: Any, left: bool = True) -> Any:
    """x with a x = b, or x a = b"""
    inverse = _inverse(a, "torch.linalg.solve")
    is_vector = len(b.shape) == 1 or list(b.shape) == list(a.shape)[:-1]
    b = op.Unsqueeze(b, [-1]) if is_vector else b
    x = op.MatMul(inverse, b) if left else op.MatMul(b, inverse)
    return op.Squeeze(x, [-1]) if is_vector else x


def _diagonal_scatter(x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """x with its diagonal replaced by src: (..., diagonal)"""
    rank = len(x.shape)
    first, second = dim1 % rank, dim2 % rank
    others = [axis for axis in range(rank) if axis not in (first, second)]
    order = [*others, first, second]
    matrix = op.Transpose(x, perm=order)
    rows, columns = (
        op.Range(0, op.Squeeze(op.Shape(matrix, start=axis, end=axis + 1), [0]), 1)
        for axis in (rank - 2, rank - 1)
    )
    is_diagonal = op.Equal(op.Unsqueeze(op.Add(rows, offset), [1]), op.Unsqueeze(columns, [0]))
    last = op.Sub(op.Squeeze(op.Shape(src, start=rank - 2, end=rank - 1), [0]), 1)
    place = op.Min(op.Max(op.Add(rows, min(offset, 0)), op.Constant(value_int=0)), last)
    values = op.Unsqueeze(op.Gather(src, place, axis=-1), [-1])  # one of each row
    back = sorted(range(rank), key=order.__getitem__)
    return op.Transpose(op.Where(is_diagonal, values, matrix), perm=back)


def _pdist(x: Any, p: float = 2.0) -> Any:
    """The distances of the pairs of rows i < j"""
    count = op.Squeeze(op.Shape(x, start=0, end=1), [0])
    places = op.Range(0, count, 1)
    is_pair = op.Less(op.Unsqueeze(places, [1]), op.Unsqueeze(places, [0]))
    pairs = op.NonZero(is_pair)  # (2, pairs)
    first, second = (op.Gather(x, op.Gather(pairs, i, axis=0), axis=0) for i in (0, 1))
    return vector_norm(op.Sub(first, second), p, [1])


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    _aten._linalg_det.default: _det_with_factors,
    _aten._linalg_slogdet.default: _slogdet,
    _aten._linalg_solve_ex.default: _solve_with_factors,
    _aten._pdist_forward.default: _pdist,
    _aten.det.default: _det,
    _aten.diagonal_scatter.default: _diagonal_scatter,
    _aten.inverse.default: _inverse,
    _aten.linalg_det.default: _det,
    _aten.linalg_inv.default: _inverse,
    _aten.linalg_inv_ex.default: _inv,
    _aten.linalg_solve.default: _solve,
}
