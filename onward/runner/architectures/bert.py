"""BERT: an encoder of text, post-norm, with a head (Devlin et al. 2019)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from onward.runner.architectures import layers as layer
from onward.runner.architectures.initial_weights import truncated_normal, zeros
from onward.runner.architectures.layers import layer_norm, width_of
from onward.runner.architectures.network import NetworkBuilder
from onward.runner.architectures.transformer_blocks import (
    attend,
    check_heads,
    first_positions,
    padding_mask,
    sizes_of,
    token_input,
)

Sizes = Literal["tiny", "small", "base", "large"]
Heads = Literal["classes", "words"]

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"layers": 2, "heads": 2, "width": 128},
    "small": {"layers": 4, "heads": 8, "width": 512},
    "base": {"layers": 12, "heads": 12, "width": 768},
    "large": {"layers": 24, "heads": 16, "width": 1024},
}
_EPSILON = 1e-12
_DRAW = truncated_normal(0.02)


def bert(
    net: NetworkBuilder,
    *,
    size: Sizes = "tiny",
    layers: int | None = None,
    heads: int | None = None,
    width: int | None = None,
    vocabulary: int = 30522,
    context: int = 512,
    head: Heads = "classes",
    classes: int = 2,
    dropout: float = 0.1,
) -> ir.Model:
    """BERT: tokens, token types and mask (batch, time) -> scores of classes, or of masked words.

    `mask` is 1 for tokens and 0 for padding. Parameters have Hugging Face's names.

    Options:
        size: the next three at once; base is the paper's with 110 M parameters
        layers: blocks; default: those of --size
        heads: attention heads; default: those of --size
        width: of the embedding and of each block; default: that of --size
        vocabulary: different tokens
        context: the longest sequence
        head: classes of the whole text, or words: the masked-word task of pre-training
        classes: classes of the head
        dropout: share dropped of embeddings, attention weights and what each block adds
    """
    depth, heads, width = sizes_of(SIZES[size], layers=layers, heads=heads, width=width)
    check_heads("bert", width, heads)
    op = net.op
    tokens = token_input(net)
    types, kept = token_input(net, "token_types"), token_input(net, "mask")
    words = net.weight("bert.embeddings.word_embeddings.weight", (vocabulary, width), _DRAW)
    places = net.weight("bert.embeddings.position_embeddings.weight", (context, width), _DRAW)
    kinds = net.weight("bert.embeddings.token_type_embeddings.weight", (2, width), _DRAW)
    x = op.Add(op.Gather(words, tokens), op.Gather(kinds, types))
    x = op.Add(x, first_positions(net, places, tokens))
    x = layer_norm(net, x, "bert.embeddings.LayerNorm", _EPSILON)
    x = layer.dropout(net, x, dropout)
    mask = padding_mask(net, kept)
    for i in range(depth):
        x = _block(net, x, f"bert.encoder.layer.{i}", heads, mask, dropout)
    if head == "words":
        return op.model(scores=_words_head(net, x, words))
    first = op.Gather(x, np.array(0), axis=1)  # the token [CLS]
    pooled = op.Tanh(layer.linear(net, first, "bert.pooler.dense", width, _DRAW))
    pooled = layer.dropout(net, pooled, dropout)
    return op.model(scores=layer.linear(net, pooled, "classifier", classes, _DRAW))


def _block(net: NetworkBuilder, x: Any, name: str, heads: int, mask: Any, drop: float) -> Any:
    """norm(x + attention(x)), then norm(x + mlp(x))"""
    op, width = net.op, width_of(x)
    parts = ("query", "key", "value")
    q, k, v = (
        layer.linear(net, x, f"{name}.attention.self.{part}", width, _DRAW) for part in parts
    )
    y = attend(net, q, k, v, heads, mask=mask, drop=drop)
    y = layer.linear(net, y, f"{name}.attention.output.dense", width, _DRAW)
    x = op.Add(x, layer.dropout(net, y, drop))
    x = layer_norm(net, x, f"{name}.attention.output.LayerNorm", _EPSILON)
    y = op.Gelu(layer.linear(net, x, f"{name}.intermediate.dense", 4 * width, _DRAW))
    y = layer.linear(net, y, f"{name}.output.dense", width, _DRAW)
    x = op.Add(x, layer.dropout(net, y, drop))
    return layer_norm(net, x, f"{name}.output.LayerNorm", _EPSILON)


def _words_head(net: NetworkBuilder, x: Any, words: ir.Value) -> Any:
    """Scores of every word at every position; the matrix is the embedding."""
    op, name = net.op, "cls.predictions"
    x = op.Gelu(layer.linear(net, x, f"{name}.transform.dense", width_of(x), _DRAW))
    x = layer_norm(net, x, f"{name}.transform.LayerNorm", _EPSILON)
    bias = net.weight(f"{name}.bias", (layer.size_of(words, 0),), zeros)
    return op.Add(op.MatMul(x, op.Transpose(words, perm=[1, 0])), bias)
