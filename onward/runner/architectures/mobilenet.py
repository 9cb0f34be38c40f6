"""MobileNetV2: inverted residuals with linear bottlenecks (Sandler et al. 2018)."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.runner.architectures import layers as layer
from onward.runner.architectures.initial_weights import normal
from onward.runner.architectures.layers import Image, conv_norm
from onward.runner.architectures.network import NetworkBuilder

_STEM, _LAST = 32, 1280
# expansion, channels, blocks, stride of the first block
_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
    (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
_MULTIPLE = 8  # channels are a multiple of it


def mobilenet(
    net: NetworkBuilder,
    *,
    image: Image = (3, 32, 32),
    classes: int = 10,
    width: float = 1.0,
    dropout: float = 0.2,
) -> ir.Model:
    """MobileNetV2: image -> scores of classes.

    The stem and the second stage of images below 64 pixels keep the resolution. Parameters have
    torchvision's names and initialisation.

    Options:
        image: channels, height and width
        classes: classes
        width: factor of all channels, such as 0.5 or 1.4
        dropout: share dropped before the linear layer
    """
    op, small = net.op, layer.is_small(image)
    x: Any = layer.image_input(net, image)
    stem = 1 if small else 2
    names = ("features.0.0", "features.0.1")
    x = _relu6(net, conv_norm(net, x, names, _channels(_STEM, width), 3, stride=stem))
    place = 1
    for stage, (expansion, channels, blocks, first_stride) in enumerate(_STAGES):
        for i in range(blocks):
            stride = first_stride if i == 0 and not (small and stage == 1) else 1
            x = _block(net, x, f"features.{place}", expansion, _channels(channels, width), stride)
            place += 1
    names = (f"features.{place}.0", f"features.{place}.1")
    x = _relu6(net, conv_norm(net, x, names, _channels(_LAST, max(1.0, width)), 1))
    x = layer.dropout(net, layer.pooled(net, x), dropout)
    return op.model(scores=layer.linear(net, x, "classifier.1", classes, normal(0.01)))


def _block(
    net: NetworkBuilder, x: Any, name: str, expansion: int, channels: int, stride: int
) -> Any:
    """1x1 to many channels, 3x3 each channel by itself, 1x1 to few, without an activation."""
    inner, y, place = x.shape[1] * expansion, x, 0
    if expansion > 1:
        names = (f"{name}.conv.0.0", f"{name}.conv.0.1")
        y, place = _relu6(net, conv_norm(net, y, names, inner, 1)), 1
    names = (f"{name}.conv.{place}.0", f"{name}.conv.{place}.1")
    y = _relu6(net, conv_norm(net, y, names, inner, 3, stride=stride, groups=inner))
    y = conv_norm(net, y, (f"{name}.conv.{place + 1}", f"{name}.conv.{place + 2}"), channels, 1)
    return net.op.Add(x, y) if stride == 1 and x.shape[1] == channels else y


def _relu6(net: NetworkBuilder, x: Any) -> Any:
    return net.op.Clip(x, 0.0, 6.0)


def _channels(channels: int, width: float) -> int:
    """The nearest multiple of 8, but at least 90 % of what was asked for."""
    wanted = channels * width
    rounded = max(_MULTIPLE, int(wanted + _MULTIPLE / 2) // _MULTIPLE * _MULTIPLE)
    return rounded + _MULTIPLE if rounded < 0.9 * wanted else rounded
