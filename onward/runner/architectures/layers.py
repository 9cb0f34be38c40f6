"""Layers that several architectures share; each adds its nodes and its named weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.runner.architectures.initial_weights import (
    Initialization,
    he_normal,
    he_normal_out,
    he_normal_transposed,
    ones,
    zeros,
)
from onward.runner.architectures.network import NetworkBuilder

Image = tuple[int, int, int]  # channels, height, width

SMALL_IMAGE = 64  # below this height or width, a stem keeps the resolution
_BATCH_NORM_EPSILON = 1e-5
_BATCH_NORM_MOMENTUM = 0.9  # of the old statistics; torch counts the new ones: 0.1


def linear(
    net: NetworkBuilder,
    x: ir.Value,
    name: str,
    size: int,
    draw: Initialization,
    *,
    bias: Initialization = zeros,
) -> Any:
    """y = x W' + b, with W of shape (size, inputs) as in torch, for x of any rank."""
    inputs = width_of(x)
    weight = net.weight(f"{name}.weight", (size, inputs), draw)
    b = net.weight(f"{name}.bias", (size,), bias)
    if x.shape is not None and len(x.shape) == 2:
        return net.op.Gemm(x, weight, b, transB=1)
    return net.op.Add(net.op.MatMul(x, net.op.Transpose(weight, perm=[1, 0])), b)


def conv(
    net: NetworkBuilder,
    x: ir.Value,
    name: str,
    channels: int,
    kernel: int,
    *,
    draw: Initialization = he_normal,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    bias: bool = True,
) -> Any:
    """A convolution with a square kernel."""
    shape = (channels, size_of(x, 1) // groups, kernel, kernel)
    weight = net.weight(f"{name}.weight", shape, draw)
    b = net.weight(f"{name}.bias", (channels,), zeros) if bias else None
    return net.op.Conv(
        x,
        weight,
        b,
        strides=[stride] * 2,
        pads=[padding] * 4,
        group=groups,
        kernel_shape=[kernel] * 2,
    )


def conv_norm(
    net: NetworkBuilder,
    x: ir.Value,
    names: tuple[str, str],
    channels: int,
    kernel: int,
    *,
    draw: Initialization = he_normal_out,
    stride: int = 1,
    groups: int = 1,
) -> Any:
    """A convolution without bias that keeps the size, then BatchNormalization."""
    y = conv(
        net, x, names[0], channels, kernel,
        draw=draw, stride=stride, padding=kernel // 2, groups=groups, bias=False,
    )  # fmt: skip
    return batch_norm(net, y, names[1])


def double_size(net: NetworkBuilder, x: ir.Value, name: str, channels: int, kernel: int) -> Any:
    """A transposed convolution with stride 2: twice the height and width.

    An even kernel covers each pixel equally often.
    """
    shape = (size_of(x, 1), channels, kernel, kernel)
    weight = net.weight(f"{name}.weight", shape, he_normal_transposed)
    b = net.weight(f"{name}.bias", (channels,), zeros)
    pads = [(kernel - 2) // 2] * 4
    return net.op.ConvTranspose(x, weight, b, strides=[2, 2], pads=pads, kernel_shape=[kernel] * 2)


def batch_norm(net: NetworkBuilder, x: ir.Value, name: str) -> Any:
    """BatchNormalization with running statistics, torch's epsilon and momentum."""
    channels = size_of(x, 1)
    starts = {"weight": ones, "bias": zeros, "running_mean": zeros, "running_var": ones}
    given = [net.weight(f"{name}.{part}", (channels,), draw) for part, draw in starts.items()]
    return net.op.BatchNormalization(
        x, *given, epsilon=_BATCH_NORM_EPSILON, momentum=_BATCH_NORM_MOMENTUM
    )


def layer_norm(net: NetworkBuilder, x: ir.Value, name: str, epsilon: float) -> Any:
    """LayerNormalization over the last axis."""
    size = (width_of(x),)
    scale, bias = net.weight(f"{name}.weight", size, ones), net.weight(f"{name}.bias", size, zeros)
    return net.op.LayerNormalization(x, scale, bias, axis=-1, epsilon=epsilon)


def dropout(net: NetworkBuilder, x: Any, share: float) -> Any:
    """Dropout, which acts only in training; nothing where the share is 0."""
    return net.op.Dropout(x, share) if share else x


def max_pool(net: NetworkBuilder, x: Any, kernel: int, stride: int, **more: Any) -> Any:
    """The largest value of each window."""
    return net.op.MaxPool(x, kernel_shape=[kernel] * 2, strides=[stride] * 2, **more)


def pooled(net: NetworkBuilder, x: Any) -> Any:
    """The mean of each channel: (batch, channels, height, width) -> (batch, channels)."""
    return net.op.Flatten(net.op.GlobalAveragePool(x), axis=1)


def image_input(net: NetworkBuilder, image: Image) -> ir.Value:
    """The input `image`: (batch, channels, height, width)."""
    return net.op.input("image", "float32", ("batch", *image))


def constant(net: NetworkBuilder, array: np.ndarray[Any, Any]) -> Any:
    """A Constant node: float initializers would be trained."""
    return net.op.Constant(value=ir.tensor(array))


def is_small(image: Image) -> bool:
    """Whether a stem that divides the resolution by 4 would leave too little of an image."""
    return min(image[1:]) < SMALL_IMAGE


def width_of(x: ir.Value) -> int:
    """The size of the last axis."""
    return size_of(x, -1)


def size_of(x: ir.Value, axis: int) -> int:
    """The size of an axis that is not symbolic."""
    size = None if x.shape is None else x.shape[axis]
    assert isinstance(size, int), f"{x.name} has no size on axis {axis}"
    return size


def check_smallest(owner: str, image: Image, least: int) -> None:
    """Refuse an image that the poolings would reduce to nothing."""
    if min(image[1:]) < least:
        size = "x".join(map(str, image))
        raise OptionError(
            f"{owner}: the image must be at least {least} pixels high and wide, not {size}\n"
            f"give such as {image[0]}x{least}x{least}"
        )


def check_divides(owner: str, size: int, by: int, what: str) -> None:
    """Refuse a size that cannot be divided evenly."""
    if size % by:
        lower = max(size // by * by, by)
        near = f"{lower} or {lower + by}" if lower < size else str(lower)
        raise OptionError(f"{owner}: {what} must be a multiple of {by}, not {size}\ngive {near}")
