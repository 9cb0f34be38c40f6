"""Convolutions of small images with large weights: one matrix product for the whole batch.

onnxruntime multiplies the weights with one image after the other. Where an image has only a few
windows, reading the weights takes longer than the products, and they are read once per image.

    y (n, o, windows) = w (o, channels taps) x columns(x) (channels taps, n windows)

columns(x) has, for each window, the elements that meet w; the gradient of w reads them, too
(`gradients/rules/conv.py` writes the same nodes, which are merged). `benchmarks/forms.py` measures
the rules.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import attribute, input_of, is_constant
from onward.providers.ort.rewrites.convolution_sizes import (
    ConvolutionSizes,
    convolution_sizes,
    is_gradient,
)

rule = Rules()

_MOST_WINDOWS = 8  # of an image; with 16, one product for each image takes as long
_LARGE_WEIGHTS = 1 << 18  # elements: smaller ones stay in a core's cache


@rule("Conv")
def one_product(op: Ops, node: ir.Node) -> Replacement:
    """conv(x, w) = w columns(x), for all images at once"""
    x, w = node.inputs[:2]
    sizes = convolution_sizes(node, x, node.outputs[0])
    if sizes is None or w is None or is_constant(w) or not _has_small_images(sizes):
        return None
    planes = op.Reshape(x, [-1, 1, *sizes.image])
    columns = op.Conv(planes, _picks(sizes), **_geometry(node))
    columns = op.Reshape(columns, [-1, sizes.channels * sizes.taps, sizes.window_count])
    rows = op.Flatten(op.Transpose(columns, perm=[0, 2, 1]), axis=2)
    bias = input_of(node, 2)
    column = None if bias is None else op.Reshape(bias, [sizes.outputs, 1])
    y = op.Gemm(op.Reshape(w, [sizes.outputs, -1]), rows, column, transB=1)
    windows = op.Reshape(y, [sizes.outputs, -1, sizes.window_count])
    return op.Reshape(op.Transpose(windows, perm=[1, 0, 2]), [-1, sizes.outputs, *sizes.windows])


@rule("ConvTranspose")
def one_product_of_gradients(op: Ops, node: ir.Node) -> Replacement:
    """The gradient of a convolution = dy w for all images at once, summed where windows overlap"""
    dy, w = node.inputs[:2]
    sizes = convolution_sizes(node, node.outputs[0], dy)
    if sizes is None or w is None or not is_gradient(node) or not _has_small_images(sizes):
        return None
    windows = op.Reshape(dy, [-1, sizes.outputs, sizes.window_count])
    rows = op.Flatten(op.Transpose(windows, perm=[0, 2, 1]), axis=2)
    columns = op.MatMul(rows, op.Reshape(w, [sizes.outputs, -1]))
    columns = op.Reshape(columns, [-1, sizes.window_count, sizes.channels * sizes.taps])
    planes = op.Transpose(columns, perm=[0, 2, 1])
    planes = op.Reshape(planes, [-1, sizes.taps, *sizes.windows])
    dx = op.ConvTranspose(planes, _picks(sizes), **_geometry(node))
    return op.Reshape(dx, [-1, sizes.channels, *sizes.image])


def _has_small_images(sizes: ConvolutionSizes) -> bool:
    planes = sizes.outputs * sizes.channels
    if sizes.taps > planes:  # the kernels of `_picks` would be larger than the weights
        return False
    large = planes * sizes.taps >= _LARGE_WEIGHTS
    return large and sizes.window_count <= _MOST_WINDOWS


def _picks(sizes: ConvolutionSizes) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Kernels of which each picks one element of a window."""
    return np.eye(sizes.taps, dtype=np.float32).reshape(sizes.taps, 1, *sizes.kernel)


def _geometry(node: ir.Node) -> dict[str, Any]:
    """Strides, pads and the like: all attributes but the size of the kernel."""
    return {name: attribute(node, name) for name in node.attributes if name != "kernel_shape"}
