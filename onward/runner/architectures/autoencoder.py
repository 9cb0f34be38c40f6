"""Autoencoders: a short code from which the input is reconstructed (Hinton and Salakhutdinov)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.runner.architectures import layers as layer
from onward.runner.architectures.initial_weights import he_normal, xavier_uniform
from onward.runner.architectures.layers import Image, check_divides, double_size
from onward.runner.architectures.network import NetworkBuilder


def autoencoder(
    net: NetworkBuilder,
    *,
    features: int = 64,
    image: Image | None = None,
    hidden: tuple[int, ...] = (64, 32),
    code: int = 8,
) -> ir.Model:
    """Autoencoder: x (batch, features), or image -> reconstruction of the same shape.

    With --image, the hidden layers are convolutions that halve the resolution. Train it with the
    distance between input and reconstruction; what it reconstructs badly is an anomaly.

    Options:
        features: columns of the data
        image: channels, height and width; default: none, the data is a table
        hidden: sizes of the encoder's layers, or their channels; the decoder has them in reverse
        code: size of the code between encoder and decoder
    """
    if image is None:
        return _dense(net, features, hidden, code)
    return _convolutional(net, image, hidden, code)


def _dense(net: NetworkBuilder, features: int, hidden: tuple[int, ...], code: int) -> ir.Model:
    op = net.op
    x: Any = op.input("x", "float32", ("batch", features))
    for i, size in enumerate(hidden, 1):
        x = op.Relu(layer.linear(net, x, f"encoder.hidden{i}", size, he_normal))
    x = layer.linear(net, x, "encoder.code", code, xavier_uniform)
    for i, size in enumerate(reversed(hidden), 1):
        x = op.Relu(layer.linear(net, x, f"decoder.hidden{i}", size, he_normal))
    x = layer.linear(net, x, "decoder.reconstruction", features, xavier_uniform)
    return op.model(reconstruction=x)


def _convolutional(
    net: NetworkBuilder, image: Image, hidden: tuple[int, ...], code: int
) -> ir.Model:
    op, times = net.op, len(hidden)
    for side, length in zip(("height", "width"), image[1:]):
        check_divides("autoencoder", length, 2**times, f"the image's {side}, halved {times} times,")
    x: Any = layer.image_input(net, image)
    for i, size in enumerate(hidden, 1):
        x = layer.conv(net, x, f"encoder.conv{i}", size, 3, draw=he_normal, stride=2, padding=1)
        x = op.Relu(x)
    small = (hidden[-1], *(side // 2**times for side in image[1:]))
    x = layer.linear(net, op.Flatten(x, axis=1), "encoder.code", code, xavier_uniform)
    x = op.Relu(layer.linear(net, x, "decoder.hidden", int(np.prod(small)), he_normal))
    x = op.Reshape(x, np.array([0, *small]))
    for i, size in enumerate((*reversed(hidden[:-1]), image[0]), 1):
        x = double_size(net, x, f"decoder.conv{i}", size, 4)
        x = op.Relu(x) if i < times else x
    return op.model(reconstruction=x)
