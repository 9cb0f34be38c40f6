"""Gradients of normalisations with parameters: batch, layer, RMS, group, instance.

xhat is the normalised input, inv = 1 / sqrt(variance + epsilon). Half precision is computed in
float32, as in the operators.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.functions import as_call, attributes_of, composite, recorded
from onward.gradients.gradient_ops import GradientOps, axes_of, rank
from onward.gradients.rule import GradientTable, absent
from onward.gradients.rules.conv import channel_sum
from onward.graph.dtypes import HALVES
from onward.passes.value_facts import attribute, input_of

gradient = GradientTable()


def wide(op: GradientOps, x: ir.Value) -> ir.Value:
    """x, or a half precision x in float32."""
    return op.Cast(x, to=int(ir.DataType.FLOAT)) if x.dtype in HALVES else x


def _given(node: ir.Node) -> list[ir.Value]:
    return [x for x in node.inputs if x is not None]


# -- batch ---------------------------------------------------------------------------------------


@gradient("BatchNormalization")
@absent
def batch_normalization(op: GradientOps, node: ir.Node, dy: Any, *running: Any) -> Any:
    """Training: dx = scale inv (dy - mean(dy) - xhat mean(dy xhat)), each mean over a channel

    Written a dy + b (x - mean) + c with one a, b, c for each channel: two affine passes and a sum.
    """
    inputs = _given(node)
    x, scale, _, mean, var = inputs
    dy = op.zeros_like(x) if dy is None else dy
    attributes, drunning = attributes_of(node), [*running, None, None][:2]
    trains = attribute(node, "training_mode")
    if trains:
        mean, var = _statistics(op, node)
    with recorded(op) as nodes:
        found = (
            _of_batch(op, inputs, dy, (mean, var), drunning, attributes)
            if trains
            else _frozen(op, node, dy)
        )
    given = [x, scale, None, mean, var, None, None, None, dy, *drunning]
    gradients = as_call(op, "BatchNormalizationGrad", nodes, given, attributes, found)
    totals: dict[ir.Value, ir.Value] = {}  # by value: the inputs of the node have become copies
    for value, d in zip(inputs, gradients):
        if d is not None:
            totals[value] = op.Add(totals[value], d) if value in totals else d
    return totals if trains else gradients


def _of_batch(
    op: GradientOps,
    inputs: list[ir.Value],
    dy: ir.Value,
    statistics: tuple[ir.Value, ir.Value],
    running: list[Any],
    attributes: dict[str, Any],
) -> Any:
    """dx = scale inv (dy - mean(dy) - xhat mean(dy xhat)), and through the running statistics"""
    x, scale, b, mean, _ = inputs
    batch_mean, batch_var = statistics
    momentum = attributes["momentum"]
    inv = op.Reciprocal(op.Sqrt(op.Add(batch_var, attributes["epsilon"])))
    total, along = _sums(op, x, dy, batch_mean, inv)
    size = op.number(op.product(op.size(x, 0), *op.sizes(x)[2:]), mean)
    a = op.Mul(op.cast_like(scale, mean), inv)
    share = op.Neg(op.Div(a, size))
    shift, slope = op.Mul(share, total), op.Mul(op.Mul(share, inv), along)
    dmean, dvar = running
    if dmean is not None:
        shift = op.Add(shift, op.Div(op.Mul(dmean, 1 - momentum), size))
    if dvar is not None:
        slope = op.Add(slope, op.Div(op.Mul(dvar, 2 * (1 - momentum)), size))
    zeros = op.zeros_like(mean)
    dx = op.Add(_affine(op, dy, a, shift, zeros), _affine(op, x, slope, zeros, batch_mean))
    given = [d if d is None else op.Mul(d, momentum) for d in running]
    return dx, op.cast_like(along, scale), op.cast_like(total, b), *given


def _frozen(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = scale inv dy, dscale = sum of dy xhat, db = sum of dy, and the statistics' gradients"""
    x, scale, b, mean, var = _given(node)
    eps = attribute(node, "epsilon")
    inv = op.Reciprocal(op.Sqrt(op.Add(var, eps)))
    total, along = _sums(op, x, dy, mean, inv)
    zeros = op.zeros_like(mean)
    dx = op.BatchNormalization(dy, scale, op.cast_like(zeros, b), zeros, var, epsilon=eps)
    a = op.Mul(op.cast_like(scale, mean), inv)
    dmean = op.Neg(op.Mul(a, total))
    dvar = op.Mul(op.Mul(op.Mul(a, inv), along), -0.5)
    return dx, op.cast_like(along, scale), op.cast_like(total, b), dmean, dvar


def _sums(op: GradientOps, x: ir.Value, dy: ir.Value, mean: ir.Value, inv: ir.Value) -> Any:
    """Each channel's sum of dy, and of dy xhat = inv (sum of dy x - mean sum of dy)"""
    x, dy = op.cast_like(x, mean), op.cast_like(dy, mean)
    total = channel_sum(op, dy)
    along = op.Sub(channel_sum(op, op.Mul(dy, x)), op.Mul(mean, total))
    return total, op.Mul(along, inv)


def _affine(op: GradientOps, x: ir.Value, a: ir.Value, c: ir.Value, mean: ir.Value) -> ir.Value:
    """a (x - mean) + c for each channel, in one pass"""
    ones = op.filled_like(mean, 1.0)
    return op.BatchNormalization(x, a, c, mean, ones, epsilon=0.0)


def _statistics(op: GradientOps, node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """The mean and variance of the batch, which a node returns as running statistics at momentum 0.

    So the forward node gets momentum 0, and the running statistics, if the graph returns them, are
    computed from its results. If other nodes read them, a second node computes the statistics.
    """
    x, scale, b, *given = _given(node)
    momentum, eps = attribute(node, "momentum"), attribute(node, "epsilon")
    if not momentum:
        return op.output(node, 1), op.output(node, 2)
    # onnxruntime overwrites the given statistics, even a user's array: it gets a scratch tensor
    copies = [op.scratch(value) for value in given]  # at momentum 0 their values do not matter
    running = [y for y in node.outputs[1:] if y.name]
    if node.graph is not op.graph or any(y.uses() for y in running):
        options = {"epsilon": eps, "momentum": 0.0, "training_mode": 1}
        _, mean, var = op.BatchNormalization(x, scale, b, *copies, outputs=3, **options)
        return mean, var
    for i, value in enumerate(copies):
        op.graph.insert_before(node, _makers(value))
        node.replace_input_with(3 + i, value)
    node.attributes["momentum"] = ir.AttrFloat32("momentum", 0.0)
    mean, var = op.output(node, 1), op.output(node, 2)
    for old, batch in zip(given, (mean, var)):
        if batch.is_graph_output():
            both = op.Add(op.Mul(old, momentum), op.Mul(batch, 1 - momentum))
            _replace_output(op, batch, both)
    return mean, var


def _makers(scratch: ir.Value) -> list[ir.Node]:
    """The nodes that compute the scratch tensor, in order."""
    cast = scratch.producer()
    compared = None if cast is None else cast.inputs[0]
    less = None if compared is None else compared.producer()
    return [node for node in (less, cast) if node is not None]


def _replace_output(op: GradientOps, old: ir.Value, new: ir.Value) -> None:
    """Replace the graph output `old` by `new`, with the same name."""
    outputs = op.graph.outputs
    for i, value in enumerate(outputs):
        if value is old:
            outputs[i] = new
    old.name, new.name = op.name("BatchNormalization"), old.name
    new.type, new.shape = old.type, old.shape


# -- layer ---------------------------------------------------------------------------------------


@gradient("LayerNormalization")
@absent
@composite("LayerNormalizationGrad", inputs=3, outputs=3, unread=False)
def layer_normalization(op: GradientOps, node: ir.Node, dy: Any, *statistics: Any) -> Any:
    """dx = inv (g - mean(g) - xhat mean(g xhat)), g = dy scale; dscale = sum of dy xhat"""
    x, scale = _given(node)[:2]
    b = input_of(node, 2)
    axes = list(range(axes_of(x, [attribute(node, "axis")])[0], rank(x)))
    size = op.number(op.product(*(op.size(x, axis) for axis in axes)), wide(op, x))
    z, factor = wide(op, x), wide(op, scale)
    dy = op.zeros_like(z) if dy is None else wide(op, dy)
    mean, inv = _layer_statistics(op, node, z, axes)
    xhat = op.Mul(op.Sub(z, mean), inv)
    along, g = op.Mul(dy, xhat), op.Mul(dy, factor)
    first = op.ReduceMean(g, axes, keepdims=1)
    second = op.ReduceMean(op.Mul(along, factor), axes, keepdims=1)
    dmean, dinv = [*statistics, None, None][:2]
    if dmean is not None:  # mean = sum of x / size
        first = op.Sub(first, op.Div(op.Div(op.cast_like(dmean, z), inv), size))
    if dinv is not None:  # d inv = -inv^2 xhat / size
        second = op.Add(second, op.Div(op.Mul(op.cast_like(dinv, z), inv), size))
    dx = op.Mul(op.Sub(op.Sub(g, first), op.Mul(xhat, second)), inv)
    dscale = op.cast_like(op.sum_to(along, scale), scale)
    db = None if b is None else op.cast_like(op.sum_to(dy, b), b)
    return op.cast_like(dx, x), dscale, db


def _layer_statistics(op: GradientOps, node: ir.Node, x: ir.Value, axes: list[int]) -> Any:
    """Mean and inv from the forward node, in float32; for float64 they are computed again."""
    if x.dtype == ir.DataType.FLOAT and attribute(node, "stash_type") == 1:
        return op.output(node, 1), op.output(node, 2)
    return _standardize(op, x, axes, attribute(node, "epsilon"))[:2]


def _standardize(op: GradientOps, x: ir.Value, axes: list[int], eps: float) -> Any:
    """mean, inv and xhat"""
    mean = op.ReduceMean(x, axes, keepdims=1)
    centred = op.Sub(x, mean)
    var = op.ReduceMean(op.Mul(centred, centred), axes, keepdims=1)
    inv = op.Reciprocal(op.Sqrt(op.Add(var, eps)))
    return mean, inv, op.Mul(centred, inv)


@gradient("RMSNormalization")
@composite("RMSNormalizationGrad", inputs=2, unread=False)
def rms_normalization(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = inv (g - xhat mean(g xhat)), g = dy scale, inv = 1 / sqrt(mean(x^2) + epsilon)"""
    x, scale = _given(node)
    axes = list(range(axes_of(x, [attribute(node, "axis")])[0], rank(x)))
    z = wide(op, x)
    factor, dy = op.cast_like(scale, z), op.cast_like(dy, z)
    squares = op.ReduceMean(op.Mul(z, z), axes, keepdims=1)
    inv = op.Reciprocal(op.Sqrt(op.Add(squares, attribute(node, "epsilon"))))
    xhat = op.Mul(z, inv)
    along = op.Mul(dy, xhat)
    second = op.ReduceMean(op.Mul(along, factor), axes, keepdims=1)
    dx = op.Mul(op.Sub(op.Mul(dy, factor), op.Mul(xhat, second)), inv)
    return op.cast_like(dx, x), op.cast_like(op.sum_to(along, scale), scale)


# -- instance and group --------------------------------------------------------------------------


@gradient("InstanceNormalization")
@composite("InstanceNormalizationGrad", inputs=3, unread=False)
def instance_normalization(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = scale inv (dy - mean(dy) - xhat mean(dy xhat)), each mean over one channel's elements"""
    x, scale, b = _given(node)
    z, dy = wide(op, x), wide(op, dy)
    axes = list(range(2, rank(x)))
    _, inv, xhat = _standardize(op, z, axes, attribute(node, "epsilon"))
    along = op.Mul(dy, xhat)
    first, second = (op.ReduceMean(each, axes, keepdims=1) for each in (dy, along))
    a = op.Mul(op.Unsqueeze(wide(op, scale), [axis - 1 for axis in axes]), inv)
    dx = op.Mul(op.Sub(op.Sub(dy, first), op.Mul(xhat, second)), a)
    dscale, db = channel_sum(op, along), channel_sum(op, dy)
    return op.cast_like(dx, x), op.cast_like(dscale, scale), op.cast_like(db, b)


@gradient("GroupNormalization")
@composite("GroupNormalizationGrad", inputs=3, unread=False)
def group_normalization(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = inv (g - mean(g) - xhat mean(g xhat)), g = dy scale, each mean over one group"""
    x, scale, b = _given(node)
    z, dy = wide(op, x), wide(op, dy)
    groups = op.shape(op.size(x, 0), attribute(node, "num_groups"), -1)
    factor = op.Unsqueeze(wide(op, scale), list(range(1, rank(x) - 1)))
    _, inv, xhat = _standardize(op, op.Reshape(z, groups), [2], attribute(node, "epsilon"))
    g = op.Reshape(op.Mul(dy, factor), groups)
    first, second = (op.ReduceMean(each, [2], keepdims=1) for each in (g, op.Mul(g, xhat)))
    dx = op.Mul(op.Sub(op.Sub(g, first), op.Mul(xhat, second)), inv)
    dx, xhat = op.reshape_as(dx, x), op.reshape_as(xhat, x)
    dscale, db = channel_sum(op, op.Mul(dy, xhat)), channel_sum(op, dy)
    return op.cast_like(dx, x), op.cast_like(dscale, scale), op.cast_like(db, b)
