"""ViT: a transformer over the patches of an image (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from onward.runner.architectures import layers as layer
from onward.runner.architectures.initial_weights import (
    lecun_normal,
    normal,
    stacked,
    xavier_uniform,
    zeros,
)
from onward.runner.architectures.layers import Image, check_divides, layer_norm, width_of
from onward.runner.architectures.network import NetworkBuilder
from onward.runner.architectures.transformer_blocks import attend, check_heads, sizes_of

Sizes = Literal["tiny", "small", "base", "large"]

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"layers": 12, "heads": 3, "width": 192},
    "small": {"layers": 12, "heads": 6, "width": 384},
    "base": {"layers": 12, "heads": 12, "width": 768},
    "large": {"layers": 24, "heads": 16, "width": 1024},
}
_EPSILON = 1e-6
_BIAS = normal(1e-6)  # of the two linear layers of a block, as in the paper's code


def vit(
    net: NetworkBuilder,
    *,
    size: Sizes = "tiny",
    layers: int | None = None,
    heads: int | None = None,
    width: int | None = None,
    patch: int = 4,
    image: Image = (3, 32, 32),
    classes: int = 10,
    dropout: float = 0.0,
) -> ir.Model:
    """Vision transformer: image -> scores of classes, read from a class token.

    Parameters have the names of the timm package. The head starts at zero, as in the paper's code.

    Options:
        size: the next three at once; base is the paper's with 86 M parameters
        layers: blocks; default: those of --size
        heads: attention heads; default: those of --size
        width: of the embedding and of each block; default: that of --size
        patch: height and width of a patch; the paper's is 16
        image: channels, height and width
        classes: classes
        dropout: share dropped of embeddings and inside each block; the paper's is 0.1
    """
    depth, heads, width = sizes_of(SIZES[size], layers=layers, heads=heads, width=width)
    check_heads("vit", width, heads)
    for side, length in zip(("height", "width"), image[1:]):
        check_divides("vit", length, patch, f"the image's {side}, for patches of {patch},")
    op = net.op
    patches = image[1] // patch * (image[2] // patch)
    x = layer.conv(
        net, layer.image_input(net, image), "patch_embed.proj", width, patch,
        draw=lecun_normal, stride=patch,
    )  # fmt: skip
    x = op.Transpose(op.Reshape(x, np.array([0, width, patches])), perm=[0, 2, 1])
    token = net.weight("cls_token", (1, 1, width), zeros)
    batch = op.Shape(x, start=0, end=1)
    tokens = op.Expand(token, op.Concat(batch, np.array([1, width]), axis=0))
    places = net.weight("pos_embed", (1, patches + 1, width), normal(0.02))
    x = op.Add(op.Concat(tokens, x, axis=1), places)
    x = layer.dropout(net, x, dropout)
    for i in range(depth):
        x = _block(net, x, f"blocks.{i}", heads, dropout)
    first = op.Gather(layer_norm(net, x, "norm", _EPSILON), np.array(0), axis=1)
    return op.model(scores=layer.linear(net, first, "head", classes, zeros))


def _block(net: NetworkBuilder, x: Any, name: str, heads: int, drop: float) -> Any:
    """x + attention(norm(x)), then x + mlp(norm(x))"""
    op, width = net.op, width_of(x)
    normed = layer_norm(net, x, f"{name}.norm1", _EPSILON)
    three = stacked(xavier_uniform, width, width, width)  # q, k and v each by its own fans
    projected = layer.linear(net, normed, f"{name}.attn.qkv", 3 * width, three)
    q, k, v = op.Split(projected, axis=-1, num_outputs=3, outputs=3)
    y = attend(net, q, k, v, heads)
    y = layer.linear(net, y, f"{name}.attn.proj", width, xavier_uniform)
    x = op.Add(x, layer.dropout(net, y, drop))
    y = layer_norm(net, x, f"{name}.norm2", _EPSILON)
    y = layer.linear(net, y, f"{name}.mlp.fc1", 4 * width, xavier_uniform, bias=_BIAS)
    y = layer.dropout(net, op.Gelu(y), drop)
    y = layer.linear(net, y, f"{name}.mlp.fc2", width, xavier_uniform, bias=_BIAS)
    return op.Add(x, layer.dropout(net, y, drop))
