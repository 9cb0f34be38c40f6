"""U-Net: segmentation by an encoder and a decoder with shortcuts (Ronneberger et al. 2015)."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.runner.architectures import layers as layer
from onward.runner.architectures.initial_weights import he_normal
from onward.runner.architectures.layers import Image, check_divides, double_size
from onward.runner.architectures.network import NetworkBuilder


def unet(
    net: NetworkBuilder,
    *,
    image: Image = (3, 64, 64),
    classes: int = 2,
    channels: int = 16,
    stages: int = 4,
    batch_norm: bool = True,
    dropout: float = 0.5,
) -> ir.Model:
    """U-Net: image -> mask, the scores of each class at each pixel (batch, classes, height, width).

    Convolutions keep the size, so that the mask has the size of the image.

    Options:
        image: channels, height and width
        classes: classes of a pixel; 1 for a mask that is on or off
        channels: of the first stage, doubled by each; the paper has 64
        stages: how often the resolution is halved
        batch_norm: BatchNormalization after each convolution; the paper has none
        dropout: share dropped at the end of the contracting path
    """
    for side, length in zip(("height", "width"), image[1:]):
        check_divides("unet", length, 2**stages, f"the image's {side}, halved {stages} times,")
    op = net.op
    x: Any = layer.image_input(net, image)
    kept = []
    for i in range(stages):
        x = _double(net, x, f"down.{i}", channels << i, batch_norm)
        kept.append(x)
        x = layer.max_pool(net, x, 2, 2)
    x = _double(net, x, "bottom", channels << stages, batch_norm)
    x = layer.dropout(net, x, dropout)
    for i in reversed(range(stages)):
        x = op.Concat(kept[i], double_size(net, x, f"up.{i}.upsample", channels << i, 2), axis=1)
        x = _double(net, x, f"up.{i}", channels << i, batch_norm)
    return op.model(mask=layer.conv(net, x, "mask", classes, 1, draw=he_normal))


def _double(net: NetworkBuilder, x: Any, name: str, channels: int, batch_norm: bool) -> Any:
    """Two 3x3 convolutions."""
    for i in (1, 2):
        if batch_norm:
            names = (f"{name}.conv{i}", f"{name}.bn{i}")
            x = layer.conv_norm(net, x, names, channels, 3, draw=he_normal)
        else:
            x = layer.conv(net, x, f"{name}.conv{i}", channels, 3, draw=he_normal, padding=1)
        x = net.op.Relu(x)
    return x
