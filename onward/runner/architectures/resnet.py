"""ResNet: convolutions with shortcuts (He et al. 2016)."""

from __future__ import annotations

from typing import Any, Literal

import onnx_ir as ir

from onward.runner.architectures import layers as layer
from onward.runner.architectures.initial_weights import torch_linear, uniform
from onward.runner.architectures.layers import Image, conv_norm
from onward.runner.architectures.network import NetworkBuilder

Depths = Literal[18, 34, 50, 101]

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
_BOTTLENECK = 50  # from this depth on, blocks have three convolutions
_WIDTHS = (64, 128, 256, 512)
_EXPANSION = 4  # of a bottleneck's channels


def resnet(
    net: NetworkBuilder, *, depth: Depths = 18, image: Image = (3, 32, 32), classes: int = 10
) -> ir.Model:
    """ResNet: image -> scores of classes.

    Images below 64 pixels get a stem of one 3x3 convolution that keeps the resolution, as the paper
    has for CIFAR; larger ones the 7x7 convolution and the pooling. Parameters have torchvision's
    names and initialisation.

    Options:
        depth: layers with weights
        image: channels, height and width
        classes: classes
    """
    op = net.op
    x: Any = layer.image_input(net, image)
    if layer.is_small(image):
        x = op.Relu(conv_norm(net, x, ("conv1", "bn1"), _WIDTHS[0], 3))
    else:
        x = op.Relu(conv_norm(net, x, ("conv1", "bn1"), _WIDTHS[0], 7, stride=2))
        x = layer.max_pool(net, x, 3, 2, pads=[1] * 4)
    add_block = _bottleneck if depth >= _BOTTLENECK else _basic
    for stage, (width, blocks) in enumerate(zip(_WIDTHS, _BLOCKS[depth]), 1):
        for i in range(blocks):
            x = add_block(net, x, f"layer{stage}.{i}", width, 2 if stage > 1 and i == 0 else 1)
    x = layer.pooled(net, x)
    bound = layer.width_of(x) ** -0.5
    scores = layer.linear(net, x, "fc", classes, torch_linear, bias=uniform(bound))
    return op.model(scores=scores)


def _basic(net: NetworkBuilder, x: Any, name: str, width: int, stride: int) -> Any:
    """relu(x + two 3x3 convolutions)"""
    y = net.op.Relu(conv_norm(net, x, _pair(name, 1), width, 3, stride=stride))
    y = conv_norm(net, y, _pair(name, 2), width, 3)
    return net.op.Relu(net.op.Add(y, _shortcut(net, x, name, width, stride)))


def _bottleneck(net: NetworkBuilder, x: Any, name: str, width: int, stride: int) -> Any:
    """relu(x + 1x1, 3x3 and 1x1 convolutions); the 3x3 one has the stride, as in torchvision"""
    y = net.op.Relu(conv_norm(net, x, _pair(name, 1), width, 1))
    y = net.op.Relu(conv_norm(net, y, _pair(name, 2), width, 3, stride=stride))
    y = conv_norm(net, y, _pair(name, 3), width * _EXPANSION, 1)
    return net.op.Relu(net.op.Add(y, _shortcut(net, x, name, width * _EXPANSION, stride)))


def _shortcut(net: NetworkBuilder, x: Any, name: str, channels: int, stride: int) -> Any:
    """x itself, or a 1x1 convolution where the shape changes."""
    if stride == 1 and x.shape[1] == channels:
        return x
    names = (f"{name}.downsample.0", f"{name}.downsample.1")
    return conv_norm(net, x, names, channels, 1, stride=stride)


def _pair(name: str, i: int) -> tuple[str, str]:
    return f"{name}.conv{i}", f"{name}.bn{i}"
