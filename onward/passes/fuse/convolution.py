"""Fold scales, offsets and padding around a convolution into the convolution."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import (
    Array,
    attribute,
    constant,
    dims,
    in_float32,
    input_of,
    ints,
    is_constant,
    is_scalar,
    made_by,
    other_input,
    rank,
    reads_once,
)

rule = Rules()

_LARGEST_WEIGHT = 1 << 26  # elements


@rule("BatchNormalization")
def batch_normalization(op: Ops, node: ir.Node) -> Replacement:
    """(conv(x, w) + b - m) k + t = conv(x, w k) + (b - m) k + t, with k = s / sqrt(v + e)."""
    if len(node.outputs) > 1 or attribute(node, "training_mode", 0):
        return None
    statistics = [constant(value) for value in node.inputs[1:]]
    if any(array is None for array in statistics):
        return None
    s, t, m, v = [in_float32(array) for array in statistics if array is not None]
    k = s / np.sqrt(v + np.float32(attribute(node, "epsilon", 1e-5)))
    return _affine_after(op, node.inputs[0], k, t - m * k)


@rule("Mul", "Div", "Add", "Sub")
def affine_after(op: Ops, node: ir.Node) -> Replacement:
    """conv(x, w) k + t with constants for each channel."""
    y = node.inputs[0]
    if made_by(y, *_CONVOLUTIONS) is None:
        y = node.inputs[1] if node.op_type in ("Mul", "Add") else None
    if y is None or rank(y) is None:
        return None
    array = _per_channel(other_input(node, y), y)
    if array is None:
        return None
    one, zero = np.ones_like(array), np.zeros_like(array)
    k, t = {
        "Mul": (array, zero),
        "Div": (one / np.where(array == 0, np.nan, array), zero),
        "Add": (one, array),
        "Sub": (one, -array),
    }[node.op_type]
    return _affine_after(op, y, k, t) if np.isfinite(k).all() else None


_CONVOLUTIONS = ("Conv", "ConvTranspose")


def _affine_after(op: Ops, y: ir.Value | None, k: Array, t: Array) -> Replacement:
    """The convolution that makes y, with output channels scaled by k and shifted by t."""
    node = made_by(y, *_CONVOLUTIONS)
    if node is None or y is None or not reads_once(y):
        return None
    w, bias = constant(node.inputs[1], _LARGEST_WEIGHT), input_of(node, 2)
    if w is None or (bias is not None and not is_constant(bias)):
        return None
    wide, group = in_float32(w), attribute(node, "group", 1)
    channels = w.shape[0] if node.op_type == "Conv" else w.shape[1] * group
    if not np.issubdtype(wide.dtype, np.floating) or k.size not in (1, channels):
        return None
    k, t = np.broadcast_to(k, (channels,)), np.broadcast_to(t, (channels,))
    before = constant(bias)
    b = np.zeros(channels, wide.dtype) if before is None else in_float32(before)
    scaled = _scale_outputs(node.op_type, wide, k, group).astype(w.dtype)
    shifted = (b * k + t).astype(w.dtype)
    return op.one(node.op_type, node.inputs[0], scaled, shifted, **node.attributes)


def _scale_outputs(operator: str, w: Array, k: Array, group: int) -> Array:
    """Conv's weights begin with the output channels, ConvTranspose's with input, output / group."""
    ones = (1,) * (w.ndim - 2)
    if operator == "Conv":
        return w * k.reshape(-1, 1, *ones)
    parts = w.reshape(group, -1, *w.shape[1:]) * k.reshape(group, 1, -1, *ones)
    return parts.reshape(w.shape)


def _per_channel(value: ir.Value | None, y: ir.Value) -> Array | None:
    """A constant that differs along y's axis 1 at most, as a vector."""
    array, depth = constant(value), rank(y)
    if array is None or depth is None or not array.size or array.ndim > depth:
        return None
    if not np.issubdtype(in_float32(array).dtype, np.floating):
        return None
    shape = (1,) * (depth - array.ndim) + array.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1):
        return None
    return in_float32(array).reshape(-1)


@rule("Conv")
def scale_before(op: Ops, node: ir.Node) -> Replacement:
    """conv(x k, w) = conv(x, w k): zeros of the padding stay zeros."""
    scale = made_by(node.inputs[0], "Mul")
    w = constant(node.inputs[1], _LARGEST_WEIGHT)
    if scale is None or w is None or not reads_once(scale.outputs[0]) or len(w.shape) < 3:
        return None
    x = scale.inputs[0] if is_constant(scale.inputs[1]) else scale.inputs[1]
    if x is None or rank(x) != w.ndim:
        return None
    k, group = _per_channel(other_input(scale, x), x), attribute(node, "group", 1)
    wide = in_float32(w)
    if k is None or k.size not in (1, w.shape[1] * group):
        return None
    k = np.broadcast_to(k, (w.shape[1] * group,)).reshape(group, 1, -1, *(1,) * (w.ndim - 2))
    scaled = (wide.reshape(group, -1, *w.shape[1:]) * k).reshape(w.shape).astype(w.dtype)
    return op.Conv(x, scaled, *node.inputs[2:], **node.attributes)


@rule("Conv")
def shift_before(op: Ops, node: ir.Node) -> Replacement:
    """conv(x + t, w) + b = conv(x, w) + b + sum(w t), where no padding mixes zeros in."""
    shift = made_by(node.inputs[0], "Add", "Sub")
    w, bias = constant(node.inputs[1], _LARGEST_WEIGHT), input_of(node, 2)
    if shift is None or w is None or not reads_once(shift.outputs[0]) or not _is_unpadded(node):
        return None
    if bias is not None and not is_constant(bias):
        return None
    x = (
        shift.inputs[0]
        if shift.op_type == "Sub" or is_constant(shift.inputs[1])
        else shift.inputs[1]
    )
    if x is None or rank(x) != w.ndim:
        return None
    t, group = _per_channel(other_input(shift, x), x), attribute(node, "group", 1)
    if t is None or t.size not in (1, w.shape[1] * group):
        return None
    t = np.broadcast_to(t, (w.shape[1] * group,)).reshape(group, 1, -1)
    t = -t if shift.op_type == "Sub" else t
    wide = in_float32(w)
    sums = wide.reshape(group, w.shape[0] // group, w.shape[1], -1).sum(-1)  # (group, out, in)
    before = constant(bias)
    b = np.zeros(w.shape[0], wide.dtype) if before is None else in_float32(before)
    shifted = (b + (sums * t).sum(-1).reshape(-1)).astype(w.dtype)
    return op.Conv(x, node.inputs[1], shifted, **node.attributes)


def _is_unpadded(node: ir.Node) -> bool:
    auto = attribute(node, "auto_pad", "NOTSET")
    pads = attribute(node, "pads")
    return auto == "VALID" or (auto == "NOTSET" and not any(pads or ()))


@rule("Conv", "AveragePool")
def pad_before(op: Ops, node: ir.Node) -> Replacement:
    """conv(pad(x, p)) = conv(x) with pads p, for zeros around the image."""
    pad = made_by(node.inputs[0], "Pad")
    if pad is None or not reads_once(pad.outputs[0]) or input_of(pad, 3) is not None:
        return None
    around, value, shape = ints(pad.inputs[1]), input_of(pad, 2), dims(pad.inputs[0])
    if around is None or attribute(pad, "mode", "constant") != "constant":
        return None
    if (value is not None and not is_scalar(value, 0)) or shape is None:
        return None
    depth = len(shape)
    before, after = around[2:depth], around[depth + 2 :]
    if any(around[:2]) or any(around[depth : depth + 2]) or any(n < 0 for n in around):
        return None
    if node.op_type == "AveragePool" and not _counts_padding(node):
        return None
    if attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    own = list(attribute(node, "pads") or [0] * (2 * len(before)))
    if attribute(node, "auto_pad") == "VALID":
        own = [0] * len(own)
    attributes = dict(node.attributes)
    attributes["pads"] = ir.AttrInt64s("pads", [a + b for a, b in zip(own, before + after)])
    attributes["auto_pad"] = ir.AttrString("auto_pad", "NOTSET")
    if node.op_type == "AveragePool":
        kernel = list(attribute(node, "kernel_shape"))
        if any(a + b >= k for a, b, k in zip(own, before + after, kernel + kernel)):
            return None  # a window that sees padding only
        attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 1)
    return op.one(node.op_type, pad.inputs[0], *node.inputs[1:], **attributes)


def _counts_padding(node: ir.Node) -> bool:
    """Whether the average's own padding, if any, counts as zeros too."""
    own = any(attribute(node, "pads") or ())
    counts = attribute(node, "count_include_pad", 0)
    return (not own or bool(counts)) and not attribute(node, "ceil_mode", 0)
