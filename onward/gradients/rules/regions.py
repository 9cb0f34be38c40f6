"""Gradients of RoiAlign and MaxRoiPool: regions of images, pooled into bins."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onward.gradients.formula import formula
from onward.gradients.gradient_ops import GradientOps, Size
from onward.gradients.rule import GradientTable
from onward.gradients.rules.sampling import wide
from onward.passes.value_facts import attribute

gradient = GradientTable()


class _Taps(NamedTuple):
    """The pixels that bins read along one axis; all tensors are (regions, bins, taps)."""

    place: ir.Value
    used: ir.Value  # whether the bin has as many taps
    weight: ir.Value | None


class _Points(NamedTuple):
    """The sampling points of bins along one axis; all tensors are (regions, bins, points)."""

    at: ir.Value  # clipped to the image
    inside: ir.Value  # whether it was inside, by less than a pixel
    used: ir.Value  # whether the region has as many points
    number: ir.Value  # how many it has: (regions, 1, 1)


@gradient("RoiAlign")
@formula
def roi_align(op: GradientOps, node: ir.Node) -> Any:
    """y[r, c] = a[r] x[image of r, c] b[r]', a and b the weights of rows and columns in bins;
    or the largest weighted pixel around each bin's points
    """
    x, rois, images = node.inputs
    assert x is not None and rois is not None and images is not None
    batch, channels, height, width = op.sizes(x)
    half = attribute(node, "coordinate_transformation_mode") == "half_pixel"
    corners = op.Mul(wide(op, rois), attribute(node, "spatial_scale"))
    corners = op.Sub(corners, 0.5) if half else corners
    x1, y1, x2, y2 = op.Split(corners, axis=1, num_outputs=4, outputs=4)
    down, across = attribute(node, "output_height"), attribute(node, "output_width")
    rows = _points(op, node, y1, y2, down, height)
    columns = _points(op, node, x1, x2, across, width)
    if attribute(node, "mode") == "max":
        pairs = ((rows, height), (columns, width))
        return _largest(op, x, images, *(_neighbours(op, *pair) for pair in pairs))
    a, b = (
        op.cast_like(each, x) for each in (_means(op, rows, height), _means(op, columns, width))
    )
    numbers = op.Equal(op.Unsqueeze(images, [1]), op.arange(batch))
    chosen = op.Unsqueeze(op.cast_like(numbers, x), [1, 3])  # (regions, 1, batch, 1)
    a = op.Reshape(op.Mul(op.Unsqueeze(a, [2]), chosen), op.shape(-1, op.product(batch, height)))
    lines = op.Reshape(op.Transpose(x, perm=[0, 2, 1, 3]), op.shape(op.product(batch, height), -1))
    read = op.Reshape(op.MatMul(a, lines), op.shape(-1, op.product(down, channels), width))
    y = op.MatMul(read, op.Transpose(b, perm=[0, 2, 1]))
    y = op.Reshape(y, op.shape(-1, down, channels, across))
    return op.Transpose(y, perm=[0, 2, 1, 3])


def _points(
    op: GradientOps, node: ir.Node, start: ir.Value, end: ir.Value, bins: int, size: Size
) -> _Points:
    """Evenly spaced points in each bin: `sampling_ratio` points, or one for each pixel."""
    extent, ratio = op.Sub(end, start), attribute(node, "sampling_ratio")
    if attribute(node, "coordinate_transformation_mode") != "half_pixel":
        extent = op.Max(extent, 1.0)
    step = op.Unsqueeze(op.Div(extent, float(bins)), [2])
    if ratio:
        count, points = _vector(op, [[[ratio]]], start), op.arange(ratio)
    else:
        count = op.Max(op.Ceil(step), 0.0)
        most = op.ReduceMax(op.Concat(op.Reshape(count, [-1]), _vector(op, [1.0], step), axis=0))
        most = op.Reshape(op.Cast(most, to=ir.DataType.INT64), [1])
        points = op.arange(most)
    point = op.cast_like(points, start)
    number = op.Unsqueeze(_vector(op, range(bins), start), [1])
    within = op.Div(op.Add(point, 0.5), op.Max(count, 1.0))
    at = op.Add(op.Unsqueeze(start, [2]), op.Mul(step, op.Add(number, within)))
    used = op.Less(point, count)
    length = op.number(size, start)
    inside = op.And(op.GreaterOrEqual(at, -1.0), op.LessOrEqual(at, length))
    last = length - 1 if isinstance(length, float) else op.Sub(length, 1.0)
    return _Points(op.Clip(at, 0.0, last), op.And(inside, used), used, count)


def _vector(op: GradientOps, numbers: Any, like: ir.Value) -> ir.Value:
    assert like.dtype is not None
    return op.constant(np.array(numbers, like.dtype.numpy()))


def _means(op: GradientOps, points: _Points, size: Size) -> ir.Value:
    """The weight of each line in each bin's mean: (regions, bins, size)"""
    places = op.cast_like(op.arange(size), points.at)
    away = op.Abs(op.Sub(places, op.Unsqueeze(points.at, [3])))
    weight = op.Relu(op.Sub(1.0, away))
    weight = op.Mul(weight, op.Unsqueeze(op.cast_like(points.inside, weight), [3]))
    return op.Div(op.ReduceSum(weight, [2], keepdims=0), op.Max(points.number, 1.0))


def _neighbours(op: GradientOps, points: _Points, size: Size) -> _Taps:
    """The two pixels around each point, with weight 0 if the point is outside."""
    low = op.Floor(points.at)
    behind = op.Sub(points.at, low)
    weight = op.Concat(op.Sub(1.0, behind), behind, axis=2)
    inside = op.cast_like(op.Concat(points.inside, points.inside, axis=2), weight)
    first = op.Cast(low, to=ir.DataType.INT64)
    second = op.Min(op.Add(first, 1), op.Sub(op.shape(size), 1))
    used = op.Concat(points.used, points.used, axis=2)
    return _Taps(op.Concat(first, second, axis=2), used, op.Mul(weight, inside))


def _largest(
    op: GradientOps, x: ir.Value, images: ir.Value, rows: _Taps, columns: _Taps
) -> ir.Value:
    """The largest element of each bin; 0 for an empty bin."""

    def crossed(combine: Any, row: ir.Value, column: ir.Value) -> Any:
        """Of each bin in two directions, (..., taps of the row, taps of the column)."""
        return combine(op.Unsqueeze(row, [2, 4]), op.Unsqueeze(column, [1, 3]))

    channels, height, width = op.sizes(x)[1:]
    table = op.Reshape(op.Transpose(x, perm=[0, 2, 3, 1]), op.shape(-1, channels))
    lines = op.Add(op.Mul(op.Reshape(images, [-1, 1, 1]), op.shape(height)), rows.place)
    index = crossed(op.Add, op.Mul(lines, op.shape(width)), columns.place)
    values = op.Gather(table, index, axis=0)  # (regions, bins, bins, taps, taps, channels)
    if rows.weight is not None and columns.weight is not None:
        weight = crossed(op.Mul, rows.weight, columns.weight)
        values = op.Mul(values, op.Unsqueeze(op.cast_like(weight, x), [-1]))
    used = op.Unsqueeze(crossed(op.And, rows.used, columns.used), [-1])
    y = op.ReduceMax(op.Where(used, values, -math.inf), [3, 4], keepdims=0)
    y = op.Where(op.Equal(y, -math.inf), 0.0, y)
    return op.Transpose(y, perm=[0, 3, 1, 2])


@gradient("MaxRoiPool")
@formula
def max_roi_pool(op: GradientOps, node: ir.Node) -> Any:
    """y[r, c, bin] = the largest x[image of r, c] in the bin; regions are whole pixels"""
    x, rois = node.inputs
    assert x is not None and rois is not None
    height, width = op.sizes(x)[2:]
    image, corners = op.Split(wide(op, rois), np.array([1, 4]), axis=1, outputs=2)
    corners = op.Mul(corners, attribute(node, "spatial_scale"))
    away = op.Floor(op.Add(op.Abs(corners), 0.5))  # rounds half a pixel away from zero
    x1, y1, x2, y2 = op.Split(op.Mul(op.Sign(corners), away), axis=1, num_outputs=4, outputs=4)
    down, across = attribute(node, "pooled_shape")
    rows, columns = _pixels(op, y1, y2, down, height), _pixels(op, x1, x2, across, width)
    return _largest(op, x, op.Cast(image, to=ir.DataType.INT64), rows, columns)


def _pixels(op: GradientOps, start: ir.Value, end: ir.Value, bins: int, size: Size) -> _Taps:
    """The pixels of each bin, its ends included, padded to the size of the largest bin."""
    step = op.Div(op.Max(op.Add(op.Sub(end, start), 1.0), 1.0), float(bins))
    low = op.Add(op.Floor(op.Mul(step, _vector(op, range(bins), step))), start)
    high = op.Add(op.Ceil(op.Mul(step, _vector(op, range(1, bins + 1), step))), start)
    low, high = (op.Cast(each, to=ir.DataType.INT64) for each in (low, high))
    most = op.ReduceMax(op.Concat(op.Reshape(op.Sub(high, low), [-1]), np.array([1]), axis=0))
    taps = op.arange(most)
    place = op.Add(op.Unsqueeze(low, [2]), taps)
    last = op.Sub(op.shape(size), 1)
    inside = op.And(op.GreaterOrEqual(place, 0), op.LessOrEqual(place, last))
    used = op.And(inside, op.Less(place, op.Unsqueeze(high, [2])))
    return _Taps(op.Min(op.Max(place, 0), last), used, None)
