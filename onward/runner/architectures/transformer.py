"""The encoder of the transformer, as a classifier of sequences (Vaswani et al. 2017)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.runner.architectures import layers as layer
from onward.runner.architectures.initial_weights import normal, stacked, xavier_uniform, zeros
from onward.runner.architectures.layers import layer_norm, width_of
from onward.runner.architectures.network import NetworkBuilder
from onward.runner.architectures.transformer_blocks import (
    attend,
    check_heads,
    first_positions,
    padding_mask,
    sinusoids,
    token_input,
)

_EPSILON = 1e-5


def transformer(
    net: NetworkBuilder,
    *,
    layers: int = 2,
    heads: int = 4,
    width: int = 128,
    hidden: int = 512,
    vocabulary: int = 256,
    context: int = 512,
    classes: int = 2,
    dropout: float = 0.1,
) -> ir.Model:
    """Encoder transformer: tokens (batch, time) -> scores of classes.

    Token 0 is padding. Positions are sinusoids; the classifier reads the mean over the tokens.
    Parameters have the names of torch.nn.TransformerEncoder.

    Options:
        layers: blocks; the paper's base has 6
        heads: attention heads; the paper's base has 8
        width: of the embedding and of each block; the paper's base has 512
        hidden: of the layer between two linear ones in each block; the paper's base has 2048
        vocabulary: different tokens
        context: the longest sequence
        classes: classes
        dropout: share dropped of embeddings, attention weights and what each block adds
    """
    check_heads("transformer", width, heads)
    op = net.op
    tokens = token_input(net)
    kept = op.Cast(op.Not(op.Equal(tokens, 0)), to=ir.DataType.FLOAT)
    table = net.weight("embedding.weight", (vocabulary, width), normal(1 / math.sqrt(width)))
    x = op.Mul(op.Gather(table, tokens), math.sqrt(width))
    x = op.Add(x, first_positions(net, sinusoids(net, context, width), tokens))
    x = layer.dropout(net, x, dropout)
    mask = padding_mask(net, kept)
    for i in range(layers):
        x = _block(net, x, f"encoder.layers.{i}", heads, hidden, mask, dropout)
    # the mean over the tokens; of only padding: 0
    weights = op.Unsqueeze(kept, np.array([2]))
    total = op.ReduceSum(op.Mul(x, weights), np.array([1]), keepdims=0)
    count = op.Max(op.ReduceSum(kept, np.array([1]), keepdims=1), 1.0)
    mean = op.Div(total, count)
    return op.model(scores=layer.linear(net, mean, "classifier", classes, xavier_uniform))


def _block(
    net: NetworkBuilder, x: Any, name: str, heads: int, hidden: int, mask: Any, drop: float
) -> Any:
    """norm(x + attention(x)), then norm(x + mlp(x))"""
    op, width = net.op, width_of(x)
    q, k, v = _projected(net, x, f"{name}.self_attn")
    y = attend(net, q, k, v, heads, mask=mask, drop=drop)
    y = layer.linear(net, y, f"{name}.self_attn.out_proj", width, xavier_uniform)
    x = layer_norm(net, op.Add(x, layer.dropout(net, y, drop)), f"{name}.norm1", _EPSILON)
    y = op.Relu(layer.linear(net, x, f"{name}.linear1", hidden, xavier_uniform))
    y = layer.linear(net, layer.dropout(net, y, drop), f"{name}.linear2", width, xavier_uniform)
    return layer_norm(net, op.Add(x, layer.dropout(net, y, drop)), f"{name}.norm2", _EPSILON)


def _projected(net: NetworkBuilder, x: Any, name: str) -> Any:
    """q, k and v by one matrix, under torch's names of it."""
    op, width = net.op, width_of(x)
    three = stacked(xavier_uniform, width, width, width)
    weight = net.weight(f"{name}.in_proj_weight", (3 * width, width), three)
    bias = net.weight(f"{name}.in_proj_bias", (3 * width,), zeros)
    y = op.Add(op.MatMul(x, op.Transpose(weight, perm=[1, 0])), bias)
    return op.Split(y, axis=-1, num_outputs=3, outputs=3)
