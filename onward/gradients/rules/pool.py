"""Gradients of pooling over windows, global pooling, unpooling."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.functions import composite
from onward.gradients.gradient_ops import GradientOps, numpy_type, rank
from onward.gradients.rule import GradientTable
from onward.gradients.rules.windows import Windows, ints, place, spread, tiles
from onward.passes.value_facts import attribute, input_of

gradient = GradientTable()


def _inner(x: ir.Value) -> list[int]:
    return list(range(2, rank(x)))


# -- the largest -------------------------------------------------------------------------------


@gradient("MaxPool")
@composite("MaxPoolGrad", inputs=1, outputs=2)
def max_pool(op: GradientOps, node: ir.Node, dy: ir.Value, *_: Any) -> Any:
    """dx[indices] += dy"""
    (x,) = node.inputs
    assert x is not None
    indices, kernel = op.output(node, 1), list(attribute(node, "kernel_shape"))
    columns = attribute(node, "storage_order")
    if tiles(place(op, node, x, node.outputs[0], kernel)) and not columns:  # each element once
        return op.MaxUnpool(dy, indices, kernel_shape=kernel, strides=kernel)
    zeros = op.Expand(op.constant(np.zeros(1, numpy_type(x))), op.shape(op.product(*op.sizes(x))))
    updates = op.Reshape(dy, [-1])
    flat = op.ScatterElements(zeros, op.Reshape(indices, [-1]), updates, axis=0, reduction="add")
    if not columns:
        return op.reshape_as(flat, x)
    batch, channels, *sizes = op.sizes(x)  # the first axis runs fastest
    backward = op.Reshape(flat, op.shape(batch, channels, *sizes[::-1]), allowzero=1)
    return op.Transpose(backward, perm=[0, 1, *_inner(x)[::-1]])


@gradient("GlobalMaxPool")
def global_max_pool(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy where x = y; equal largest ones share it"""
    (x,), (y,) = node.inputs, node.outputs
    assert x is not None
    largest = op.cast_like(op.Equal(x, y), x)
    count = op.ReduceSum(largest, _inner(x), keepdims=1)
    return op.Mul(largest, op.Div(dy, count))


@gradient("MaxUnpool")
def max_unpool(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy[indices], of the part of dy that the indices count in"""
    x, indices = node.inputs[:2]
    assert x is not None
    if input_of(node, 2) is not None:
        ends = op.Add(op.Mul(op.Sub(op.shape(*op.sizes(x)[2:]), 1), _strides(node)), _tail(node))
        axes = _inner(x)
        dy = op.Slice(dy, [0] * len(axes), ends, axes)
    return op.Gather(op.Reshape(dy, [-1]), indices, axis=0)


def _strides(node: ir.Node) -> list[int]:
    kernel = attribute(node, "kernel_shape")
    return list(attribute(node, "strides") or [1] * len(kernel))


def _tail(node: ir.Node) -> list[int]:
    """kernel - pads"""
    kernel = list(attribute(node, "kernel_shape"))
    pads = attribute(node, "pads") or [0] * (2 * len(kernel))
    return [k - a - b for k, a, b in zip(kernel, pads, pads[len(kernel) :])]


# -- means and norms ---------------------------------------------------------------------------


@gradient("AveragePool")
def average_pool(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy / count, spread over each window"""
    (x,) = node.inputs
    assert x is not None
    kernel = list(attribute(node, "kernel_shape"))
    at = place(op, node, x, node.outputs[0], kernel)
    padding = bool(attribute(node, "count_include_pad"))
    padded = at.ends is None or not isinstance(at.begins, list) or any((*at.begins, *at.ends))
    inside = padding or not padded
    if inside and not attribute(node, "ceil_mode"):  # every window has all its taps
        return _over_windows(op, dy, x, at, 1 / prod(kernel))
    count: Any = 1.0
    for axis in range(len(kernel)):
        counted = op.cast_like(_counted(op, at, axis, padding), x)
        counted = op.Reshape(counted, [-1, *[1] * (len(kernel) - 1 - axis)])
        count = counted if axis == 0 else op.Mul(count, counted)
    return _over_windows(op, op.Div(dy, count), x, at, 1.0)


def _counted(op: GradientOps, at: Windows, axis: int, padding: bool) -> ir.Value:
    """The number of taps of each window along one axis: those in x, or also in its padding."""
    kernel, size = at.kernel[axis], op.shape(at.sizes[axis])
    begin = at.begins[axis] if isinstance(at.begins, list) else op.Gather(at.begins, [axis])
    firsts = op.Sub(op.Mul(op.arange(at.counts[axis]), at.strides[axis]), begin)
    taps = op.Mul(op.arange(kernel), at.dilations[axis])
    places = op.Add(op.Unsqueeze(firsts, [1]), taps)
    low, high = op.constant(np.array([0])), size
    if padding and at.ends is not None:
        assert isinstance(at.begins, list)
        low, high = op.constant(np.array([-at.begins[axis]])), op.Add(size, at.ends[axis])
    counts = op.And(op.GreaterOrEqual(places, low), op.Less(places, high))
    return op.ReduceSum(op.Cast(counts, to=int(ir.DataType.INT64)), [1], keepdims=0)


def _over_windows(
    op: GradientOps, dy: ir.Value, x: ir.Value, at: Windows, weight: float
) -> ir.Value:
    """Each window's dy times the weight on all of its elements, summed where windows overlap."""
    kernel = ints(at.kernel)
    if tiles(at):
        scales = np.array([1, 1, *kernel], np.float32)
        nearest = {"mode": "nearest", "nearest_mode": "floor"}
        dy = dy if weight == 1 else op.Mul(dy, weight)
        return op.Resize(dy, None, scales, coordinate_transformation_mode="asymmetric", **nearest)
    planes = op.Reshape(dy, op.shape(-1, 1, *at.counts))
    ones = op.constant(np.full((1, 1, *kernel), weight, numpy_type(x)))
    return op.reshape_as(spread(op, planes, ones, at), x)


@gradient("LpPool")
def lp_pool(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = sign(x) |x|^(p - 1) (dy / y^(p - 1) spread over each window)"""
    (x,), (y,) = node.inputs, node.outputs
    assert x is not None
    p = attribute(node, "p")
    at = place(op, node, x, y, list(attribute(node, "kernel_shape")))
    return op.Mul(_slope(op, x, p), _over_windows(op, _shared(op, dy, y, p), x, at, 1.0))


@gradient("GlobalLpPool")
def global_lp_pool(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = sign(x) |x|^(p - 1) dy / y^(p - 1)"""
    (x,), (y,) = node.inputs, node.outputs
    assert x is not None
    p = attribute(node, "p")
    return op.Mul(_slope(op, x, p), _shared(op, dy, y, p))


def _slope(op: GradientOps, x: ir.Value, p: int) -> ir.Value:
    """sign(x) |x|^(p - 1)"""
    if p == 1:
        return op.Sign(x)
    if p == 2:
        return x
    if p % 2 == 0:
        return op.Pow(x, float(p - 1))
    return op.Mul(x, op.Pow(op.Abs(x), float(p - 2)))


def _shared(op: GradientOps, dy: ir.Value, y: ir.Value, p: int) -> ir.Value:
    """dy / y^(p - 1), and 0 where y is 0"""
    if p == 1:
        return dy
    none = op.Equal(y, 0.0)
    safe = op.Where(none, 1.0, y)
    return op.Where(none, 0.0, op.Div(dy, safe if p == 2 else op.Pow(safe, float(p - 1))))


@gradient("GlobalAveragePool")
def global_average_pool(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy / size everywhere"""
    (x,) = node.inputs
    assert x is not None
    size = op.number(op.product(*op.sizes(x)[2:]), x)
    return op.Expand(op.Div(dy, size), op.shape_of(x))
