"""Convolutions and their gradients in onnxruntime's blocked layout, for x86-64 with AVX-512.

onnxruntime's fastest convolution kernels read images as (batch, channels / 16, height, width, 16).
It uses them by itself where weights are constants. While training, weights are inputs: so the rules
here write the operators of that layout, and the reordering of weights and images, into the graph.
`benchmarks/forms.py` measures each rule.

    x (n, c, h, w) -> ReorderInput -> Conv of com.microsoft.nchwc -> ReorderOutput -> y (n, o, h, w)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import attribute, input_of, is_constant
from onward.providers.ort.rewrites.convolution_sizes import (
    ConvolutionSizes,
    convolution_sizes,
    is_gradient,
    pair,
)

rule = Rules()

NCHWC = "com.microsoft.nchwc"
BLOCK = 16  # channels that are adjacent in memory
_FEW_WINDOWS = 64  # below, a blocked convolution is slower than a plain one
_MANY_WINDOWS = 256  # from here on, a plain convolution is faster than a ConvTranspose


@rule("Conv")
def blocked_conv(op: Ops, node: ir.Node) -> Replacement:
    """conv(x, w) = reorder(blocked_conv(reorder(x), reorder(w)))"""
    x, w = node.inputs[:2]
    sizes = convolution_sizes(node, x, node.outputs[0])
    if sizes is None or x is None or w is None or is_constant(w) or sizes.kernel == (1, 1):
        return None
    small = sizes.channels < BLOCK  # the kernel reads such images as they are
    if sizes.outputs % BLOCK or (sizes.channels % BLOCK and not small):
        return None
    if sizes.window_count < _FEW_WINDOWS:
        return None
    blocked = x if small else _blocked(op.ReorderInput(x))
    kept = {n: attribute(node, n) for n in ("strides", "dilations", "pads")}
    y = op.Conv(
        blocked, _conv_weights(op, w, sizes), input_of(node, 2), kernel_shape=sizes.kernel, **kept
    )
    return _plain(op, _blocked(y), sizes.outputs)


@rule("ConvTranspose")
def transposed_as_conv(op: Ops, node: ir.Node) -> Replacement:
    """The gradient of a convolution of stride 1 = a convolution with the kernel rotated by 180°"""
    dy, w = node.inputs[:2]
    sizes = convolution_sizes(node, node.outputs[0], dy)
    if sizes is None or not is_gradient(node) or pair(node, "strides") != (1, 1):
        return None
    pads = attribute(node, "pads", [0] * 4)
    padded = [k - 1 - pad for k, pad in zip(sizes.kernel * 2, pads)]
    if min(padded) < 0 or w is None or dy is None:
        return None
    taps = list(range(sizes.taps))[::-1]
    if sizes.kernel != (1, 1) and _fits_blocks(sizes):
        weights = _gradient_weights(op, w, sizes, taps, sizes.kernel)
        blocked = _blocked(op.ReorderInput(dy))
        dx = op.Conv(blocked, weights, kernel_shape=sizes.kernel, pads=padded)
        return _plain(op, _blocked(dx), sizes.channels)
    if sizes.window_count < _MANY_WINDOWS or sizes.channels < BLOCK:
        return None
    rows = op.Transpose(op.Reshape(w, [sizes.outputs, sizes.channels, -1]), perm=[2, 1, 0])
    turned = op.Transpose(op.Gather(rows, taps, axis=0), perm=[1, 2, 0])
    weights = op.Reshape(turned, [sizes.channels, sizes.outputs, *sizes.kernel])
    return op.Conv(dy, weights, kernel_shape=sizes.kernel, pads=padded)


@rule("ConvTranspose")
def transposed_as_strided_parts(op: Ops, node: ir.Node) -> Replacement:
    """The gradient of a convolution of stride s = s x s small convolutions, interleaved

    dx[s a + r] = sum of dy[a + e - u] w[s u + q], where q = (r + pad) mod s, e = (r + pad - q) / s:
    the elements of dx at one remainder r meet the same taps of the kernel.
    """
    dy, w = node.inputs[:2]
    sizes = convolution_sizes(node, node.outputs[0], dy)
    if sizes is None or dy is None or w is None or not is_gradient(node):
        return None
    strides, pads = pair(node, "strides"), attribute(node, "pads", [0] * 4)
    if not _fits_blocks(sizes) or max(strides) == 1:
        return None
    axes = [_parts(sizes, axis, strides[axis], pads[axis]) for axis in (0, 1)]
    if None in axes:
        return None
    blocked = _blocked(op.ReorderInput(dy))
    rows = []
    for down in axes[0] or ():
        parts = []
        for across in axes[1] or ():
            kernel = (len(down.taps), len(across.taps))
            taps = [i * sizes.kernel[1] + j for i in down.taps for j in across.taps]
            weights = _gradient_weights(op, w, sizes, taps, kernel)
            pads = [down.begin, across.begin, down.end, across.end]
            part = _blocked(op.Conv(blocked, weights, kernel_shape=kernel, pads=pads))
            parts.append(op.Reshape(part, [-1, down.size, 1, across.size, 1, BLOCK]))
        rows.append(op.Concat(*parts, axis=4))
    dx = op.Reshape(op.Concat(*rows, axis=2), [-1, sizes.channels, *sizes.image])
    return _plain(op, dx, sizes.channels)


class _Part(NamedTuple):
    """The convolution that computes the elements of dx at one remainder, along one axis."""

    taps: list[int]
    size: int  # elements of dx
    begin: int  # padding of dy
    end: int


def _parts(sizes: ConvolutionSizes, axis: int, stride: int, pad: int) -> list[_Part] | None:
    """One part for each remainder; None if a part is empty or would need only a part of dy."""
    kernel, size, windows = sizes.kernel[axis], sizes.image[axis], sizes.windows[axis]
    if size % stride or kernel < stride:
        return None
    parts, count = [], size // stride
    for remainder in range(stride):
        first = (remainder + pad) % stride
        ahead = (remainder + pad - first) // stride
        taps = list(range(first, kernel, stride))[::-1]
        parts.append(_Part(taps, count, len(taps) - 1 - ahead, count + ahead - windows))
    return parts if all(part.begin >= 0 and part.end >= 0 for part in parts) else None


def _fits_blocks(sizes: ConvolutionSizes) -> bool:
    whole = sizes.channels % BLOCK == 0 and sizes.outputs % BLOCK == 0
    return whole and sizes.window_count >= _FEW_WINDOWS


def _conv_weights(op: Ops, w: ir.Value, sizes: ConvolutionSizes) -> ir.Value:
    """(outputs, channels, taps) -> (outputs / 16, channels / 16, taps, 16 channels, 16 outputs)

    In two steps: blocks of 16 outputs become the last axis, then rows of 16 move.
    """
    outputs, channels = sizes.outputs // BLOCK, sizes.channels // BLOCK
    last = _blocks_last(op, w, outputs, sizes.channels * sizes.taps)
    if channels:
        rows = op.Reshape(last, [outputs, channels, BLOCK, -1, BLOCK])
        last = op.Transpose(rows, perm=[0, 1, 3, 2, 4])
    return op.Reshape(last, [sizes.outputs, sizes.channels, *sizes.kernel])


def _gradient_weights(
    op: Ops, w: ir.Value, sizes: ConvolutionSizes, taps: Sequence[int], kernel: tuple[int, int]
) -> ir.Value:
    """The same for a convolution from outputs to channels, with these taps in this order"""
    outputs, channels = sizes.outputs // BLOCK, sizes.channels // BLOCK
    last = _blocks_last(op, w, outputs * sizes.channels, sizes.taps)
    rows = op.Reshape(last, [outputs, BLOCK, channels, -1, BLOCK])
    turned = op.Transpose(rows, perm=[2, 0, 3, 1, 4])
    chosen = op.Gather(turned, list(taps), axis=2)
    return op.Reshape(chosen, [sizes.channels, sizes.outputs, *kernel])


def _blocks_last(op: Ops, w: ir.Value, count: int, size: int) -> ir.Value:
    """(count, 16, size) -> (count, size, 16)

    As a reordering of images: onnxruntime merges a Transpose with the next one into a slow one.
    """
    return _blocked(op.ReorderInput(op.Reshape(w, [count, BLOCK, size, 1])))


def _plain(op: Ops, blocked: ir.Value, channels: int) -> ir.Value:
    return _blocked(op.ReorderOutput(blocked, channels=channels))


def _blocked(value: ir.Value) -> ir.Value:
    """Mark the node that makes this value as one of the blocked layout."""
    maker = value.producer()
    assert maker is not None
    maker.domain = NCHWC
    return value
