"""GPT-2: a decoder of text, pre-norm, with tied embedding and head (Radford et al. 2019)."""

from __future__ import annotations

import math
from typing import Any, Literal

import onnx_ir as ir

from onward.runner.architectures import layers as layer
from onward.runner.architectures.initial_weights import normal, zeros
from onward.runner.architectures.layers import layer_norm, width_of
from onward.runner.architectures.network import NetworkBuilder
from onward.runner.architectures.transformer_blocks import (
    attend,
    check_heads,
    first_positions,
    sizes_of,
    token_input,
)

Sizes = Literal["tiny", "small", "medium", "large", "xl"]

_PAPER = {"vocabulary": 50257, "context": 1024}
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"layers": 4, "heads": 4, "width": 128, "vocabulary": 256, "context": 128},
    "small": {"layers": 12, "heads": 12, "width": 768, **_PAPER},
    "medium": {"layers": 24, "heads": 16, "width": 1024, **_PAPER},
    "large": {"layers": 36, "heads": 20, "width": 1280, **_PAPER},
    "xl": {"layers": 48, "heads": 25, "width": 1600, **_PAPER},
}
_EPSILON, _STD = 1e-5, 0.02


def gpt2(
    net: NetworkBuilder,
    *,
    size: Sizes = "tiny",
    layers: int | None = None,
    heads: int | None = None,
    width: int | None = None,
    vocabulary: int | None = None,
    context: int | None = None,
    dropout: float = 0.1,
) -> ir.Model:
    """GPT-2: tokens (batch, time) -> scores of the next token (batch, time, vocabulary).

    Parameters have Hugging Face's names; the head is `wte.weight`, the embedding.

    Options:
        size: the other sizes at once: small is the paper's with 124 M parameters
        layers: blocks; default: those of --size
        heads: attention heads; default: those of --size
        width: of the embedding and of each block; default: that of --size
        vocabulary: different tokens; default: those of --size, 256 (bytes) or 50257
        context: the longest sequence; default: that of --size
        dropout: share dropped of embeddings, attention weights and what each block adds
    """
    layers, heads, width, vocabulary, context = sizes_of(
        SIZES[size], layers=layers, heads=heads, width=width, vocabulary=vocabulary, context=context
    )
    check_heads("gpt2", width, heads)
    op = net.op
    tokens = token_input(net)
    wte = net.weight("wte.weight", (vocabulary, width), normal(_STD))
    wpe = net.weight("wpe.weight", (context, width), normal(_STD))
    x = op.Add(op.Gather(wte, tokens), first_positions(net, wpe, tokens))
    x = layer.dropout(net, x, dropout)
    for i in range(layers):
        x = _block(net, x, f"h.{i}", heads, layers, dropout)
    x = layer_norm(net, x, "ln_f", _EPSILON)
    return op.model(scores=op.MatMul(x, op.Transpose(wte, perm=[1, 0])))


def _block(net: NetworkBuilder, x: Any, name: str, heads: int, layers: int, drop: float) -> Any:
    """x + attention(norm(x)), then x + mlp(norm(x)).

    The last projection of each branch is scaled by 1 / sqrt(branches): sums do not grow with depth.
    """
    op, width = net.op, width_of(x)
    residual = _STD / math.sqrt(2 * layers)
    normed = layer_norm(net, x, f"{name}.ln_1", _EPSILON)
    projected = _conv1d(net, normed, f"{name}.attn.c_attn", 3 * width)
    q, k, v = op.Split(projected, axis=-1, num_outputs=3, outputs=3)
    y = attend(net, q, k, v, heads, causal=True, drop=drop)
    y = _conv1d(net, y, f"{name}.attn.c_proj", width, residual)
    x = op.Add(x, layer.dropout(net, y, drop))
    y = layer_norm(net, x, f"{name}.ln_2", _EPSILON)
    y = op.Gelu(_conv1d(net, y, f"{name}.mlp.c_fc", 4 * width), approximate="tanh")
    y = _conv1d(net, y, f"{name}.mlp.c_proj", width, residual)
    return op.Add(x, layer.dropout(net, y, drop))


def _conv1d(net: NetworkBuilder, x: Any, name: str, size: int, std: float = _STD) -> Any:
    """y = x W + b with W of shape (inputs, size), as GPT-2's checkpoints have it."""
    weight = net.weight(f"{name}.weight", (width_of(x), size), normal(std))
    return net.op.Add(net.op.MatMul(x, weight), net.weight(f"{name}.bias", (size,), zeros))
