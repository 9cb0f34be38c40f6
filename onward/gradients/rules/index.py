"""Gradients of Gather and selection: dy is added at the positions that were read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps, Size, numpy_type, rank
from onward.gradients.rule import GradientTable
from onward.passes.value_facts import attribute, ints

gradient = GradientTable()


def scatter_add(
    op: GradientOps, sizes: Sequence[Size], indices: ir.Value, dy: ir.Value, axis: int
) -> ir.Value:
    """Zeros of these sizes, to which dy's slices are added at `indices` of an axis.

    It is Gather's gradient. The axis is moved to the front, where ScatterND adds whole slices.
    """
    axis, wide = axis % len(sizes), rank(indices)
    places = op.Unsqueeze(op.Cast(indices, to=ir.DataType.INT64), [-1])
    before, after = list(range(axis)), list(range(axis + 1, len(sizes)))
    inside = list(range(axis, axis + wide))  # the axes of the indices in dy
    if axis:
        dy = op.Transpose(dy, perm=[*inside, *before, *(a - 1 + wide for a in after)])
    shape = op.shape(sizes[axis], *(sizes[a] for a in (*before, *after)))
    zeros = op.Expand(op.number_like(0.0, dy), shape)
    dx: ir.Value = op.ScatterND(zeros, places, dy, reduction="add")
    return op.Transpose(dx, perm=[*range(1, axis + 1), 0, *after]) if axis else dx


@gradient("Gather")
def gather(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx[indices[i]] += dy[i] at `axis`; of one slice at a known place, dx is the rest in zeros"""
    x, indices = node.inputs
    assert x is not None and indices is not None
    axis = attribute(node, "axis") % rank(x)
    places, size = ints(indices), op.size(x, axis)
    if places is None or len(places) != 1:
        return scatter_add(op, op.sizes(x), indices, dy, axis)
    if rank(indices) == 0:
        dy = op.Unsqueeze(dy, [axis])
    elif rank(indices) > 1:
        dy = op.Squeeze(dy, list(range(axis + 1, axis + rank(indices))))
    sides = (places[0], -1 - places[0])  # before and after; the size is added to a negative one
    whole = [n if n >= 0 else n + size if isinstance(size, int) else op.Add(size, n) for n in sides]
    return op.Pad(dy, op.shape(*whole), None, [axis], mode="constant")


@gradient("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx[..., indices[i]] += dy[..., i]"""
    x, indices = node.inputs
    assert x is not None
    if rank(x) == 1:  # dy is of shape (1, indices)
        dy = op.Squeeze(dy, [0])
    return scatter_add(op, op.sizes(x), op.Reshape(indices, [-1]), dy, -1)


@gradient("GatherElements")
def gather_elements(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx[indices[i, j], j] += dy[i, j] (axis 0)"""
    x, indices = node.inputs
    assert x is not None
    axis = attribute(node, "axis")
    return op.ScatterElements(op.zeros_like(x), indices, dy, axis=axis, reduction="add")


@gradient("GatherND")
def gather_nd(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx[b, indices[b, i]] += dy[b, i]; the numbers b go in front of the indices"""
    x, indices = node.inputs
    assert x is not None and indices is not None
    batch = [_along(op, indices, axis) for axis in range(attribute(node, "batch_dims"))]
    places = op.Concat(*batch, indices, axis=-1) if batch else indices
    return op.ScatterND(op.zeros_like(x), places, dy, reduction="add")


def _along(op: GradientOps, indices: ir.Value, axis: int) -> ir.Value:
    """The number of each index along an axis: (..., 1)."""
    sizes = [*op.sizes(indices)[:-1], 1]
    line: list[Size] = [1] * len(sizes)
    line[axis] = sizes[axis]
    numbers = op.Reshape(op.arange(sizes[axis]), op.shape(*line), allowzero=1)
    return op.Expand(numbers, op.shape(*sizes))


# -- choose ----------------------------------------------------------------------------------


@gradient("TopK")
def top_k(op: GradientOps, node: ir.Node, dy: ir.Value, _: Any) -> Any:
    """dx[indices[i]] = dy[i] at `axis`"""
    x, indices = node.inputs[0], node.outputs[1]
    assert x is not None
    return op.ScatterElements(op.zeros_like(x), indices, dy, axis=attribute(node, "axis"))


@gradient("Compress")
def compress(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx[i] = the next dy where condition[i]; without an axis, x is taken flat"""
    x, condition = node.inputs
    assert x is not None
    places = op.Squeeze(op.NonZero(condition), [0])
    axis = attribute(node, "axis")
    if axis is not None:
        return scatter_add(op, op.sizes(x), places, dy, axis)
    return op.reshape_as(scatter_add(op, [op.product(*op.sizes(x))], places, dy, 0), x)


@gradient("Unique")
def unique(op: GradientOps, node: ir.Node, dy: ir.Value, *_: Any) -> Any:
    """dx_i = dy_k / count_k, where x_i is the k-th: equals share"""
    (x,) = node.inputs
    assert x is not None
    number, count = op.output(node, 2), op.cast_like(op.output(node, 3), dy)
    axis = attribute(node, "axis")
    if axis is None:
        return op.reshape_as(op.Gather(op.Div(dy, count), number, axis=0), x)
    column = op.Reshape(count, [-1] + [1] * (rank(x) - 1 - axis % rank(x)))
    return op.Gather(op.Div(dy, column), number, axis=axis)


@gradient("OneHot")
def one_hot(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dvalues = (sum of dy where cold, sum of dy where hot)"""
    indices, depth, values = node.inputs
    assert values is not None
    off_on = op.constant(np.array([0, 1], numpy_type(values)))
    hot = op.OneHot(indices, depth, off_on, axis=attribute(node, "axis"))
    sums = [op.ReduceSum(op.Mul(dy, mask), keepdims=0) for mask in (op.Sub(1.0, hot), hot)]
    return None, None, op.Concat(*(op.Unsqueeze(each, [0]) for each in sums), axis=0)
