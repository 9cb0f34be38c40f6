"""SqueezeNet 1.1: AlexNet's accuracy with 50 times fewer parameters (Iandola et al. 2016)."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.runner.architectures import layers as layer
from onward.runner.architectures.initial_weights import he_uniform, normal
from onward.runner.architectures.layers import Image
from onward.runner.architectures.network import NetworkBuilder

_STEM = 64
# squeeze and expand channels of each fire module by its place in torchvision's `features`
_FIRES = {
    3: (16, 64), 4: (16, 64), 6: (32, 128), 7: (32, 128),
    9: (48, 192), 10: (48, 192), 11: (64, 256), 12: (64, 256),
}  # fmt: skip
_POOLS = (2, 5, 8)  # the places of the max poolings
_SMALLEST = 8


def squeezenet(
    net: NetworkBuilder, *, image: Image = (3, 32, 32), classes: int = 10, dropout: float = 0.5
) -> ir.Model:
    """SqueezeNet 1.1: image -> scores of classes.

    The first convolution of images below 64 pixels keeps the resolution. Parameters have
    torchvision's names and initialisation.

    Options:
        image: channels, height and width
        classes: classes
        dropout: share dropped before the last convolution
    """
    layer.check_smallest("squeezenet", image, _SMALLEST)
    op, small = net.op, layer.is_small(image)
    stride, padding = (1, 1) if small else (2, 0)
    x = layer.image_input(net, image)
    x = layer.conv(net, x, "features.0", _STEM, 3, draw=he_uniform, stride=stride, padding=padding)
    x = op.Relu(x)
    for place in sorted((*_POOLS, *_FIRES)):
        if place in _POOLS:
            x = layer.max_pool(net, x, 3, 2, ceil_mode=1)
        else:
            x = _fire(net, x, f"features.{place}", *_FIRES[place])
    x = layer.dropout(net, x, dropout)
    x = op.Relu(layer.conv(net, x, "classifier.1", classes, 1, draw=normal(0.01)))
    return op.model(scores=layer.pooled(net, x))


def _fire(net: NetworkBuilder, x: Any, name: str, squeeze: int, expand: int) -> Any:
    """1x1 convolutions to few channels, then 1x1 and 3x3 ones side by side to many."""
    op = net.op
    x = op.Relu(layer.conv(net, x, f"{name}.squeeze", squeeze, 1, draw=he_uniform))
    one = layer.conv(net, x, f"{name}.expand1x1", expand, 1, draw=he_uniform)
    three = layer.conv(net, x, f"{name}.expand3x3", expand, 3, draw=he_uniform, padding=1)
    return op.Concat(op.Relu(one), op.Relu(three), axis=1)
