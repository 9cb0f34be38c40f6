"""Gradients of GridSample and AffineGrid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps, Size, numpy_type
from onward.gradients.rule import GradientTable
from onward.gradients.rules.index import scatter_add
from onward.graph.dtypes import HALVES
from onward.passes.value_facts import attribute

gradient = GradientTable()

_A = -0.75  # the coefficient of Keys, which ONNX fixes

# Each tap's weight is a polynomial of d, the distance of the point from the tap before it: one row
# for each power of d.
_WEIGHTS = {
    "nearest": np.array([[1.0]]),
    "linear": np.array([[1.0, 0.0], [-1.0, 1.0]]),
    "cubic": np.array(
        [
            [0, 1, 0, 0],
            [_A, 0, -_A, 0],
            [-2 * _A, -_A - 3, 2 * _A + 3, _A],
            [_A, _A + 2, -_A - 2, -_A],
        ]
    ),
}
_FIRST_TAP = {"nearest": 0, "linear": 0, "cubic": -1}


class Taps(NamedTuple):
    """The pixels that each point reads along one axis; all tensors are (taps, batch, points)."""

    place: ir.Value
    weight: ir.Value
    slope: ir.Value  # d weight / d grid


@gradient("GridSample")
def grid_sample(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y = sum over taps of weight x[tap]: dx[tap] += weight dy, dgrid = sum of slope x[tap] dy"""
    x, grid = node.inputs
    assert x is not None and grid is not None
    batch, channels, *sizes = op.sizes(x)
    axes, points = len(sizes), op.product(*op.sizes(grid)[1:-1])
    at = op.Reshape(wide(op, grid), op.shape(batch, points, axes), allowzero=1)
    taps = [
        _taps(op, node, op.Gather(at, axes - 1 - axis, axis=2), size)
        for axis, size in enumerate(sizes)
    ]
    index = _flat(op, [tap.place for tap in taps], batch, sizes)
    pixels = op.product(*sizes)
    dys = op.Reshape(dy, op.shape(batch, channels, points), allowzero=1)
    dys = op.Transpose(dys, perm=[0, 2, 1])
    weight = op.cast_like(_crossed(op, [tap.weight for tap in taps]), x)
    added = op.Mul(op.Unsqueeze(weight, [-1]), dys)  # (taps..., batch, points, channels)
    rows = scatter_add(op, [op.product(batch, pixels), channels], index, added, 0)
    dx = op.Reshape(rows, op.shape(batch, pixels, channels), allowzero=1)
    dx = op.reshape_as(op.Transpose(dx, perm=[0, 2, 1]), x)
    if attribute(node, "mode") == "nearest":
        return dx, None
    table = op.Reshape(x, op.shape(batch, channels, pixels), allowzero=1)
    table = op.Reshape(op.Transpose(table, perm=[0, 2, 1]), op.shape(-1, channels))
    read = op.Gather(table, index, axis=0)
    dweight = op.ReduceSum(op.Mul(read, dys), [-1], keepdims=0)
    return dx, _dgrid(op, grid, taps, dweight)


def wide(op: GradientOps, at: ir.Value) -> ir.Value:
    """Positions in a type that is precise enough for all pixels."""
    return op.Cast(at, to=ir.DataType.FLOAT) if at.dtype in HALVES else at


def _dgrid(op: GradientOps, grid: ir.Value, taps: list[Taps], dweight: ir.Value) -> ir.Value:
    """The gradient of each coordinate from that of the weights, the last axis first."""
    parts = []
    for axis in reversed(range(len(taps))):
        factors = [tap.slope if i == axis else tap.weight for i, tap in enumerate(taps)]
        slope = _crossed(op, factors)
        moved = op.Mul(op.cast_like(dweight, slope), slope)
        part = op.ReduceSum(moved, list(range(len(taps))), keepdims=0)
        parts.append(op.Unsqueeze(part, [-1]))
    return op.reshape_as(op.cast_like(op.Concat(*parts, axis=-1), grid), grid)


def _crossed(op: GradientOps, factors: Sequence[ir.Value]) -> ir.Value:
    """The product of one tap of each axis: (taps of axis 0, taps of axis 1, ..., batch, points)"""
    product = factors[0]
    for factor in factors[1:]:
        product = op.Mul(op.Unsqueeze(product, [-3]), factor)
    return product


def _flat(
    op: GradientOps, places: Sequence[ir.Value], batch: Size, sizes: Sequence[Size]
) -> ir.Value:
    """The flat index in the batch of the pixel that each combination of taps reads."""
    index = op.Reshape(op.arange(batch), [1, -1, 1])
    for axis, (place, size) in enumerate(zip(places, sizes)):
        index = op.Mul(index, op.shape(size))
        index = op.Add(index if axis == 0 else op.Unsqueeze(index, [-3]), place)
    return index


# -- along one axis --------------------------------------------------------------------------


def _taps(op: GradientOps, node: ir.Node, point: ir.Value, size: Size) -> Taps:
    """The taps of points in -1 .. 1."""
    mode, padding = attribute(node, "mode"), attribute(node, "padding_mode")
    length = op.number(size, point)
    length = op.number_like(length, point) if isinstance(length, float) else length
    last = op.Sub(length, 1.0)
    scale = op.Div(last if attribute(node, "align_corners") else length, 2.0)
    if attribute(node, "align_corners"):
        at = op.Mul(op.Div(op.Add(point, 1.0), 2.0), last)
    else:
        at = op.Div(op.Sub(op.Mul(op.Add(point, 1.0), length), 1.0), 2.0)
    base = op.Round(at) if mode == "nearest" else op.Floor(at)
    rows = _WEIGHTS[mode]
    place = op.Add(base, _column(op, np.arange(rows.shape[1]) + _FIRST_TAP[mode], at))
    distance = op.Sub(at, base)
    weight = _polynomial(op, rows, distance)
    powers = np.arange(1, max(len(rows), 2))[:, None]
    slope = op.Mul(_polynomial(op, rows[1:] * powers, distance), scale)
    if padding == "zeros":
        inside = op.And(op.GreaterOrEqual(place, 0.0), op.LessOrEqual(place, last))
        weight, slope = op.Where(inside, weight, 0.0), op.Where(inside, slope, 0.0)
    elif padding == "reflection":
        place = _reflected(op, place, last, 0.0 if attribute(node, "align_corners") else 0.5)
    place = op.Clip(place, 0.0, last)
    return Taps(op.Cast(place, to=ir.DataType.INT64), weight, slope)


def _column(op: GradientOps, numbers: Any, like: ir.Value) -> ir.Value:
    """One number for each tap: (taps, 1, 1)"""
    return op.constant(np.asarray(numbers, numpy_type(like)).reshape(-1, 1, 1))


def _polynomial(op: GradientOps, rows: Any, d: ir.Value) -> ir.Value:
    """rows[0] + d (rows[1] + d (rows[2] + ...)), for each tap"""
    if len(rows) == 0:
        return op.number_like(0.0, d)
    result = _column(op, rows[-1], d)
    for row in rows[-2::-1]:
        result = op.Add(op.Mul(result, d), _column(op, row, d))
    return result


def _reflected(op: GradientOps, place: ir.Value, last: ir.Value, edge: float) -> ir.Value:
    """Mirrored at -edge and last + edge until inside: a triangle wave."""
    width = op.Add(last, 2 * edge)
    period = op.Max(op.Mul(width, 2.0), 1.0)  # of one element with its centre as edge: any
    turns = op.Div(op.Add(place, edge), period)
    within = op.Mul(op.Sub(turns, op.Floor(turns)), period)
    return op.Sub(op.Sub(width, op.Abs(op.Sub(within, width))), edge)


# -- grids -----------------------------------------------------------------------------------


@gradient("AffineGrid")
def affine_grid(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """grid = base theta': dtheta = dy' base, base the grid that the identity makes, and ones"""
    theta, size = node.inputs
    assert theta is not None and size is not None
    batch, (axes, columns) = op.size(theta, 0), (op.size(theta, 1), op.size(theta, 2))
    if not isinstance(axes, int) or not isinstance(columns, int):
        raise ValueError("it must be known whether theta has two or three dimensions")
    identity = op.constant(np.eye(axes, columns, dtype=numpy_type(theta))[None])
    one = op.Concat(np.array([1]), op.Slice(size, [1], [2 + axes], [0]), axis=0)
    base = op.AffineGrid(identity, one, align_corners=attribute(node, "align_corners"))
    base = op.Reshape(base, [-1, axes])  # (points, axes)
    dys = op.Reshape(dy, op.shape(batch, -1, axes))
    dys = op.Transpose(dys, perm=[0, 2, 1])
    dshift = op.ReduceSum(dys, [2], keepdims=1)
    return op.Concat(op.MatMul(dys, base), dshift, axis=2)
