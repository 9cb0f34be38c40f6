"""Gradients of deformable convolution, and of causal convolution with a carried state."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.formula import formula
from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable
from onward.gradients.rules.windows import Windows, ints, place
from onward.passes.value_facts import attribute, input_of

gradient = GradientTable()


@gradient("DeformConv")
@formula
def deform_conv(op: GradientOps, node: ir.Node) -> Any:
    """y = w columns + b, columns = mask x at (window's tap + offset), between its neighbours"""
    x, w, offset = node.inputs[:3]
    assert x is not None and w is not None and offset is not None
    b, mask = input_of(node, 3), input_of(node, 4)
    group, share = attribute(node, "group"), attribute(node, "offset_group")
    at = place(op, node, x, offset, op.sizes(w)[2:])
    taps, windows = op.product(*at.kernel), op.product(*at.counts)
    channels = ints([op.size(w, 1)])[0] * group
    grid = _grid(op, offset, at)
    planes = op.Reshape(x, op.shape(-1, channels // share, *at.sizes))
    read = op.GridSample(planes, grid, mode="linear", padding_mode="zeros", align_corners=0)
    if mask is not None:
        read = op.Reshape(read, op.shape(-1, channels // share, taps, *at.counts))
        read = op.Mul(read, op.Reshape(mask, op.shape(-1, 1, taps, *at.counts)))
    inner = op.product(channels // group, taps)
    columns = op.Reshape(read, op.shape(-1, group, inner, windows))
    y = op.MatMul(op.Reshape(w, op.shape(group, -1, inner)), columns)
    y = op.Reshape(y, op.shape(-1, op.size(w, 0), *at.counts))
    return y if b is None else op.Add(y, op.Reshape(b, [-1, *[1] * len(at.sizes)]))


def _grid(op: GradientOps, offset: ir.Value, at: Windows) -> ir.Value:
    """The grid for GridSample: (batch groups, taps windows of axis 1, other windows, axes)."""
    axes, begins = len(at.sizes), at.begins
    assert isinstance(begins, list)
    offsets = op.Reshape(offset, op.shape(-1, *at.kernel, axes, *at.counts))
    points = []
    for axis in range(axes):
        taps = op.Mul(op.arange(at.kernel[axis]), at.dilations[axis])
        firsts = op.Sub(op.Mul(op.arange(at.counts[axis]), at.strides[axis]), begins[axis])
        taps = op.Reshape(taps, [-1, *[1] * (2 * axes - 1 - axis)])
        firsts = op.Reshape(firsts, [-1, *[1] * (axes - 1 - axis)])
        place_ = op.cast_like(op.Add(taps, firsts), offset)
        place_ = op.Add(op.Gather(offsets, axis, axis=1 + axes), place_)
        size = op.number(at.sizes[axis], offset)
        place_ = op.Sub(op.Div(op.Add(op.Mul(place_, 2.0), 1.0), size), 1.0)
        points.append(op.Unsqueeze(place_, [-1]))
    grid = op.Concat(*points[::-1], axis=-1)
    rows = op.product(*at.kernel, at.counts[0])
    return op.Reshape(grid, op.shape(-1, rows, *at.counts[1:], axes))


@gradient("CausalConvWithState")
@formula
def causal_conv_with_state(op: GradientOps, node: ir.Node) -> Any:
    """y[t] = act(b + sum over k of w[k] z[t + k]), z = [past, x]; the present is z's last ones"""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    b, past = input_of(node, 2), input_of(node, 3)
    channels, taps = ints([op.size(w, 0), op.size(w, 2)])
    z = op.Pad(x, [0, 0, taps - 1, 0, 0, 0]) if past is None else op.Concat(past, x, axis=2)
    y = op.Conv(z, w, b, group=channels)
    if attribute(node, "activation") != "none":
        y = op.Mul(y, op.Sigmoid(y))
    return y, op.Slice(z, op.shape(op.size(x, 2)), [2**31 - 1], [2])
