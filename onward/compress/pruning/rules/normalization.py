"""Axes of normalizations, softmax and reductions: what is averaged over is pinned."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.compress.pruning.axes import Axes, constant, rank
from onward.compress.pruning.cut import CUTS, Cut
from onward.compress.pruning.rules.reading import given
from onward.graph.operator_table import OpTable
from onward.graph.operators import REDUCTIONS

NORMALIZATION = OpTable()


@NORMALIZATION("BatchNormalization", "InstanceNormalization")
def _per_channel(node: ir.Node, axes: Axes) -> None:
    """y[:, c] = (x[:, c] - mean[c]) / deviation[c] * scale[c] + bias[c]"""
    x, y = node.inputs[0], node.outputs[0]
    if x is None or (rank(x) or 0) < 2 or sum(bool(each.name) for each in node.outputs) > 1:
        return
    axes.tie((x, 1), (y, 1))
    for weight in node.inputs[1:]:
        if weight is not None:
            axes.tie((weight, 0), (y, 1))


@NORMALIZATION("GroupNormalization", since=21)
def _group(node: ir.Node, axes: Axes) -> None:
    """Whole groups of channels are removed."""
    x, y, groups = node.inputs[0], node.outputs[0], node.attributes.get_int("num_groups", 1)
    channels = axes.size((x, 1)) if x is not None and (rank(x) or 0) > 1 else None
    if x is None or not channels:
        return
    axes.tie((x, 1), (y, 1))
    for weight in node.inputs[1:]:
        if weight is not None:
            axes.tie((weight, 0), (y, 1))
    axes.tie_all((x, 1), np.arange(channels) // (channels // groups))


@CUTS("GroupNormalization")
def _cut_group(node: ir.Node, cut: Cut) -> None:
    kept = cut.kept(node.inputs[0], 1)
    if kept is not None:
        groups = node.attributes.get_int("num_groups", 1)
        cut.set_attribute(node, "num_groups", int(kept.sum()) // (len(kept) // groups))


@NORMALIZATION("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def _last_axes(node: ir.Node, axes: Axes) -> None:
    _tie_others(node, axes, lambda place, first, count: place < first)


@NORMALIZATION("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "CumSum", "CumProd", since=13)
@NORMALIZATION("LpNormalization", "CumSum")
def _one_axis(node: ir.Node, axes: Axes) -> None:
    if node.op_type in ("CumSum", "CumProd"):
        axis = constant(given(node, 1))
        if axis is None:
            return
        node_axis = int(axis.reshape(-1)[0])
        _tie_others(node, axes, lambda place, first, count: place != node_axis % count)
        return
    _tie_others(node, axes, lambda place, first, count: place != first)


def _tie_others(node: ir.Node, axes: Axes, is_tied: object) -> None:
    """Tie the axes of x and y that are not normalized over."""
    x, y = node.inputs[0], node.outputs[0]
    count = rank(x)
    if x is None or not count or rank(y) != count or len([v for v in node.outputs if v.name]) > 1:
        return
    first = node.attributes.get_int("axis", -1) % count
    assert callable(is_tied)
    for place in range(count):
        if is_tied(place, first, count):
            axes.tie((x, place), (y, place))


@NORMALIZATION(*REDUCTIONS, "ArgMax", "ArgMin")
def _reduce(node: ir.Node, axes: Axes) -> None:
    """Axes that are not reduced are tied."""
    x, y = node.inputs[0], node.outputs[0]
    count = rank(x)
    reduced = reduced_axes(node, count)
    if x is None or count is None or reduced is None:
        return
    keeps = bool(node.attributes.get_int("keepdims", 1))
    place = 0
    for axis in range(count):
        if axis in reduced:
            place += keeps
            continue
        if place < (rank(y) or 0):
            axes.tie((x, axis), (y, place))
        place += 1


def reduced_axes(node: ir.Node, count: int | None) -> set[int] | None:
    """The axes that a node reduces; None if they are computed."""
    if count is None:
        return None
    if node.op_type in ("ArgMax", "ArgMin"):
        return {node.attributes.get_int("axis", 0) % count}
    listed = node.attributes.get_ints("axes", None)
    if listed is None and given(node, 1) is not None:
        found = constant(node.inputs[1])
        if found is None:
            return None
        listed = found.reshape(-1).tolist()
    if not listed:
        if node.attributes.get_int("noop_with_empty_axes", 0):
            return set()
        return set(range(count))
    return {int(axis) % count for axis in listed}
