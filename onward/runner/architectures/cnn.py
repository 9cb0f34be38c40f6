"""A small convolutional network, such as MNIST needs."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.runner.architectures import layers as layer
from onward.runner.architectures.initial_weights import he_normal, xavier_uniform
from onward.runner.architectures.layers import Image
from onward.runner.architectures.network import NetworkBuilder


def cnn(
    net: NetworkBuilder,
    *,
    image: Image = (1, 28, 28),
    channels: tuple[int, ...] = (32, 64),
    hidden: int = 128,
    classes: int = 10,
    dropout: float = 0.25,
) -> ir.Model:
    """Small convolutional network: image -> scores of classes.

    Each stage is a 3x3 convolution and a 2x2 max pooling; two linear layers follow.

    Options:
        image: channels, height and width
        channels: of each convolution
        hidden: size of the first linear layer
        classes: classes
        dropout: share dropped before each linear layer
    """
    layer.check_smallest("cnn", image, 2 ** len(channels))
    op = net.op
    x: Any = layer.image_input(net, image)
    for i, size in enumerate(channels, 1):
        x = op.Relu(layer.conv(net, x, f"conv{i}", size, 3, draw=he_normal, padding=1))
        x = layer.max_pool(net, x, 2, 2)
    x = layer.dropout(net, op.Flatten(x, axis=1), dropout)
    x = op.Relu(layer.linear(net, x, "fc1", hidden, he_normal))
    x = layer.dropout(net, x, dropout)
    return op.model(scores=layer.linear(net, x, "fc2", classes, xavier_uniform))
