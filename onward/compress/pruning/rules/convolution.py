"""Axes of convolutions, pools and resizing: channels are tied, what is around them is pinned."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.compress.pruning.axes import Axes, known_sizes, rank
from onward.compress.pruning.cut import CUTS, Cut
from onward.compress.pruning.rules.reading import given
from onward.graph.operator_table import OpTable

CONVOLUTION = OpTable()
_MANY_GROUPS = 8  # from here on whole groups are removed; fewer lose channels within each


@CONVOLUTION("Conv")
def _conv(node: ir.Node, axes: Axes) -> None:
    """W: (outputs, inputs / groups, ...)"""
    x, w, bias, y = node.inputs[0], node.inputs[1], given(node, 2), node.outputs[0]
    if x is None or w is None:
        return
    groups = node.attributes.get_int("group", 1)
    axes.tie((w, 0), (y, 1))
    if bias is not None:
        axes.tie((bias, 0), (y, 1))
    if groups == 1:
        axes.tie((x, 1), (w, 1))
        return
    _tie_groups(axes, groups, (x, 1), (y, 1), (w, 1))


@CONVOLUTION("ConvTranspose")
def _conv_transpose(node: ir.Node, axes: Axes) -> None:
    """W: (inputs, outputs / groups, ...)"""
    x, w, bias, y = node.inputs[0], node.inputs[1], given(node, 2), node.outputs[0]
    if x is None or w is None:
        return
    groups = node.attributes.get_int("group", 1)
    axes.tie((w, 0), (x, 1))
    if bias is not None:
        axes.tie((bias, 0), (y, 1))
    if groups == 1:
        axes.tie((y, 1), (w, 1))
        return
    _tie_groups(axes, groups, (y, 1), (x, 1), (w, 1))


def _tie_groups(
    axes: Axes,
    groups: int,
    inner: tuple[ir.Value, int],
    outer: tuple[ir.Value, int],
    weight: tuple[ir.Value, int],
) -> None:
    """Tie both sides of a grouped convolution: whole groups, or the same channel of each group.

    `inner` is the side that the second axis of the weight counts, `outer` the other.
    """
    n, m, depth = axes.size(inner), axes.size(outer), axes.size(weight)
    if not n or not m or not depth or n != depth * groups or m % groups:
        for axis in (inner, outer, weight):
            axes.pin(axis)
        return
    if groups >= _MANY_GROUPS or depth == 1:
        axes.pin(weight)
        firsts = np.arange(m) // (m // groups) * depth  # the first inner channel of each group
        axes.tie_all(inner, np.arange(n) // depth)
        axes.tie_positions(outer, np.arange(m), inner, firsts)
        return
    axes.tie_positions(inner, np.arange(n), weight, np.arange(n) % depth)
    axes.tie_all(outer, np.arange(m) % (m // groups))


@CUTS("Conv", "ConvTranspose")
def _cut_conv(node: ir.Node, cut: Cut) -> None:
    x, w, groups = node.inputs[0], node.inputs[1], node.attributes.get_int("group", 1)
    if groups == 1 or x is None or w is None:
        return
    inner = x if node.op_type == "Conv" else node.outputs[0]
    cut.set_attribute(node, "group", cut.size(inner, 1) // cut.size(w, 1))


@CONVOLUTION("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool")
@CONVOLUTION("GlobalLpPool")
def _pool(node: ir.Node, axes: Axes) -> None:
    x = node.inputs[0]
    for y in node.outputs:
        if x is not None and y.name and len(node.outputs) == 1:
            axes.tie((x, 1), (y, 1))


@CONVOLUTION("Resize", "Upsample")
def _resize(node: ir.Node, axes: Axes) -> None:
    """Batch and channels, which keep their size, are tied."""
    x, y = node.inputs[0], node.outputs[0]
    if x is None or "axes" in node.attributes or (rank(x) or 0) < 3:
        return
    sizes, made = known_sizes(x) or (), known_sizes(y) or ()
    if node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        return
    for place in range(min(2, len(made))):
        if sizes[place] is not None and sizes[place] == made[place]:
            axes.tie((x, place), (y, place))


@CUTS("Resize")
def _cut_resize(node: ir.Node, cut: Cut) -> None:
    changed = cut.changed(node.outputs[0])
    if changed and given(node, 3) is not None:
        cut.fix_sizes(node, 3, changed)


@CONVOLUTION("DepthToSpace", "SpaceToDepth")
def _blocks(node: ir.Node, axes: Axes) -> None:
    """Channel c of the side with space is every channel (block, c) of the other."""
    x, y = node.inputs[0], node.outputs[0]
    if x is None:
        return
    deep, wide = ((x, 1), (y, 1)) if node.op_type == "DepthToSpace" else ((y, 1), (x, 1))
    n, m = axes.size(deep), axes.size(wide)
    if not n or not m:
        return
    is_first = node.attributes.get_string("mode", "DCR") == "CRD"
    places = np.arange(n)
    axes.tie_positions(deep, places, wide, places // (n // m) if is_first else places % m)
