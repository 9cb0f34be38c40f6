"""Gradients of convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.functions import composite
from onward.gradients.gradient_ops import GradientOps, Size, numpy_type, rank
from onward.gradients.rule import GradientTable
from onward.gradients.rules.linear import equal_places
from onward.gradients.rules.windows import ints, place, spans, spread, with_rank
from onward.passes.value_facts import attribute, input_of

gradient = GradientTable()


@gradient("Conv")
@composite("ConvGrad", inputs=3, unread=False)
def conv(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy spread by w, dw[k] = sum of dy[o] x[o stride + k dilation - pad], db = sum of dy"""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    group = attribute(node, "group")
    at = place(op, node, x, node.outputs[0], op.sizes(w)[2:])
    dy = with_rank(dy, rank(x))
    geometry = {
        n: a.value for n, a in node.attributes.items() if n not in ("group", "kernel_shape")
    }
    dx = spread(op, dy, w, at, group=group)
    dw = _weight(op, x, dy, w, group, geometry)
    return dx, dw, channel_sum(op, dy) if input_of(node, 2) is not None else None


def channel_sum(op: GradientOps, dy: ir.Value) -> ir.Value:
    """dy summed over everything but the channels: plane by plane first, which engines do faster"""
    planes = op.ReduceSum(dy, list(range(2, rank(dy))), keepdims=0) if rank(dy) > 2 else dy
    return op.ReduceSum(planes, [0], keepdims=0)


def _weight(
    op: GradientOps, x: ir.Value, dy: ir.Value, w: ir.Value, group: int, geometry: dict[str, Any]
) -> ir.Value:
    """dw = sum over the batch of dy columns(x)', computed as (columns(x) dy')'

    columns(x) has, for each window, the elements that meet w: (batch, channels taps, windows).
    """
    columns, taps = _columns(op, x, w, geometry)
    windows, outputs = op.product(*op.sizes(dy)[2:]), op.size(w, 0)
    groups = [group] if group > 1 else []
    columns = op.Reshape(columns, op.shape(-1, *groups, op.product(op.size(w, 1), taps), windows))
    dys = op.Reshape(dy, op.shape(-1, *groups, _share(op, outputs, group), windows))
    if group == 1 and _has_small_images(windows, outputs):
        return _weight_of_small_images(op, columns, dys, w)
    order = [0, 2, 1] if group == 1 else [0, 1, 3, 2]
    each = op.MatMul(columns, op.Transpose(dys, perm=order))
    total = op.ReduceSum(each, [0], keepdims=0)
    return op.reshape_as(op.Transpose(total, perm=[a - 1 for a in order[1:]]), w)


def _has_small_images(windows: Size, outputs: Size) -> bool:
    return isinstance(windows, int) and isinstance(outputs, int) and 4 * windows <= outputs


def _weight_of_small_images(
    op: GradientOps, columns: ir.Value, dys: ir.Value, w: ir.Value
) -> ir.Value:
    """The same as one product over all windows of the batch: one for each image would be small.

    With few windows in an image and many channels, the sum over the images would take longer than
    the products.
    """
    rows = op.Flatten(op.Transpose(columns, perm=[0, 2, 1]), axis=2)
    outputs = op.Flatten(op.Transpose(dys, perm=[1, 0, 2]), axis=1)
    return op.reshape_as(op.MatMul(outputs, rows), w)


def _columns(
    op: GradientOps, x: ir.Value, w: ir.Value, geometry: dict[str, Any]
) -> tuple[ir.Value, Size]:
    """The elements at each tap of each window, (batch channels, taps, windows), and the tap count.

    A convolution with one-hot kernels selects them: the fastest way in stock engines.
    """
    kernel = op.sizes(w)[2:]
    taps = op.product(*kernel)
    if (
        taps == 1
        and not any(geometry.get("pads") or [])
        and max(geometry.get("strides") or [1]) == 1
    ):
        return x, taps
    planes = op.Reshape(x, op.shape(-1, 1, *op.sizes(x)[2:]))
    if isinstance(taps, int):
        picks = op.constant(np.eye(taps, dtype=numpy_type(x)).reshape(taps, 1, *ints(kernel)))
    else:
        picks = op.Reshape(op.cast_like(equal_places(op, taps), x), op.shape(taps, 1, *kernel))
    return op.Conv(planes, picks, **geometry), taps


def _share(op: GradientOps, size: Size, group: int) -> Size:
    return size // group if isinstance(size, int) else op.Div(size, group)


@gradient("ConvTranspose")
@composite("ConvTransposeGrad", inputs=3, unread=False)
def conv_transpose(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """The transpose of a convolution: dx = conv(dy, w), dw = that convolution's for (dy, x)"""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    group, dy = attribute(node, "group"), with_rank(dy, rank(x))
    geometry = {
        name: list(attribute(node, name) or [1] * (rank(x) - 2))
        for name in ("strides", "dilations")
    }
    read, pads = _read(op, node, x, w, dy)
    if any(pads):
        geometry["pads"] = pads
    dx = op.Conv(read, w, group=group, **geometry)
    dw = _weight(op, read, x, w, group, geometry)
    return dx, dw, channel_sum(op, dy) if input_of(node, 2) is not None else None


def _read(
    op: GradientOps, node: ir.Node, x: ir.Value, w: ir.Value, dy: ir.Value
) -> tuple[ir.Value, list[int]]:
    """The part of dy that the backward convolution reads, and its padding.

    Of stride (size - 1) + span + output_padding elements, pads take from both sides; a given output
    shape says how many are taken in all.
    """
    axes = rank(x) - 2
    strides = attribute(node, "strides") or [1] * axes
    more = attribute(node, "output_padding") or [0] * axes
    auto, shape = attribute(node, "auto_pad"), attribute(node, "output_shape")
    pads = list(attribute(node, "pads") or [0] * (2 * axes)) if auto == "NOTSET" else [0] * 2 * axes
    begins, ends = pads[:axes], pads[axes:]
    if shape is not None or auto.startswith("SAME"):
        lengths = spans(ints(op.sizes(w)[2:]), attribute(node, "dilations") or [1] * axes)
        if shape is None:  # size * stride
            left = [span + n - s for span, n, s in zip(lengths, more, strides)]
        else:
            sizes = op.sizes(x)[2:]
            if not all(isinstance(size, int) for size in sizes):
                return _read_to_shape(op, node, dy, op.shape(*sizes), lengths)
            whole = [s * (n - 1) + span for n, s, span in zip(ints(sizes), strides, lengths)]
            left = [n + m - out for n, m, out in zip(whole, more, shape[-axes:])]
        begins = [(max(n, 0) + (auto != "SAME_UPPER")) // 2 for n in left]
        ends = [n - begin for n, begin in zip(left, begins)]
    excess = [n - end for n, end in zip(more, ends)]
    if any(n >= s for n, s in zip(excess, strides)):  # otherwise it is less than one more window
        cut = [n if n > 0 else 0 for n in excess]
        read = [-n if n else np.iinfo(np.int64).max for n in cut]
        dy = with_rank(op.Slice(dy, [0] * axes, read, list(range(2, 2 + axes))), rank(x))
    return dy, [*begins, *(max(-n, 0) for n in excess)]


def _read_to_shape(
    op: GradientOps, node: ir.Node, dy: ir.Value, sizes: ir.Value, lengths: list[int]
) -> tuple[ir.Value, list[int]]:
    """The same for a given output shape and unknown sizes: dy is padded (or cut) beforehand."""
    axes = len(lengths)
    more = attribute(node, "output_padding") or [0] * axes
    strides = attribute(node, "strides") or [1] * axes
    shape = np.array(attribute(node, "output_shape")[-axes:])
    whole = op.Add(op.Mul(op.Sub(sizes, 1), strides), lengths)
    left = op.Max(op.Sub(op.Add(whole, more), shape), 0)
    up = 0 if attribute(node, "auto_pad") == "SAME_UPPER" else 1
    begins = op.Div(op.Add(left, up), 2)
    ends = op.Sub(op.Sub(whole, shape), begins)
    none = np.zeros(2, np.int64)
    padded = with_rank(op.Pad(dy, op.Concat(none, begins, none, ends, axis=0)), 2 + axes)
    return padded, [0] * (2 * axes)
