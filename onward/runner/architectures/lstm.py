"""An LSTM that classifies sequences or tags their tokens (Hochreiter and Schmidhuber 1997)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from onward.runner.architectures import layers as layer
from onward.runner.architectures.initial_weights import (
    Array,
    normal,
    orthogonal,
    stacked,
    xavier_uniform,
)
from onward.runner.architectures.network import NetworkBuilder
from onward.runner.architectures.transformer_blocks import token_input

Tasks = Literal["classify", "tag"]

_GATES = 4  # input, output, forget, cell: ONNX's order, not torch's
_FORGET = 2


def lstm(
    net: NetworkBuilder,
    *,
    task: Tasks = "classify",
    layers: int = 1,
    width: int = 64,
    hidden: int = 128,
    bidirectional: bool = True,
    vocabulary: int = 256,
    classes: int = 2,
    dropout: float = 0.2,
) -> ir.Model:
    """LSTM: tokens (batch, time) -> scores of classes of the whole sequence, or of each token.

    Token 0 is padding at the end. Weights have ONNX's layout: `lstm.0.W`, `.R` and `.B`, with the
    gates in the order input, output, forget, cell. Forget gates start open, with a bias of 1.

    Options:
        task: classify the sequence (batch, classes), or tag tokens (batch, time, classes)
        layers: LSTM layers
        width: of the embedding
        hidden: of the state, in each direction
        bidirectional: read the sequence in both directions
        vocabulary: different tokens
        classes: classes
        dropout: share dropped of embeddings and of what each layer returns
    """
    op = net.op
    tokens = token_input(net)
    table = net.weight("embedding.weight", (vocabulary, width), normal(1.0))
    is_token = op.Cast(op.Not(op.Equal(tokens, 0)), to=ir.DataType.INT64)
    counts = op.Max(op.ReduceSum(is_token, np.array([1]), keepdims=0), 1)
    lengths = op.Cast(counts, to=ir.DataType.INT32)
    x = op.Transpose(op.Gather(table, tokens), perm=[1, 0, 2])  # (time, batch, width)
    size = hidden * (2 if bidirectional else 1)
    x = layer.dropout(net, x, dropout)
    last: Any = None
    for i in range(layers):
        y, last = _layer(net, x, f"lstm.{i}", hidden, bidirectional, lengths)
        x = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), np.array([0, 0, size]))
        x = layer.dropout(net, x, dropout)
    if task == "tag":
        read = op.Transpose(x, perm=[1, 0, 2])
    else:  # the state after the last token, and after the first one in the other direction
        read = op.Reshape(op.Transpose(last, perm=[1, 0, 2]), np.array([0, size]))
        read = layer.dropout(net, read, dropout)
    return op.model(scores=layer.linear(net, read, "classifier", classes, xavier_uniform))


def _layer(
    net: NetworkBuilder, x: Any, name: str, hidden: int, bidirectional: bool, lengths: Any
) -> Any:
    """All states (time, directions, batch, hidden), and the last one of each direction."""
    directions, gates = 2 if bidirectional else 1, (hidden,) * _GATES
    rows = _GATES * hidden
    shape = (directions, rows, layer.width_of(x))
    w = net.weight(f"{name}.W", shape, stacked(xavier_uniform, *gates))
    r = net.weight(f"{name}.R", (directions, rows, hidden), stacked(orthogonal, *gates))
    b = net.weight(f"{name}.B", (directions, 2 * rows), _open_forget_gates)
    direction = "bidirectional" if bidirectional else "forward"
    y, last, _ = net.op.LSTM(
        x, w, r, b, lengths, hidden_size=hidden, direction=direction, outputs=3
    )
    return y, last


def _open_forget_gates(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """0, and 1 for forget gates (Jozefowicz et al. 2015): a new LSTM remembers."""
    bias = np.zeros((shape[0], 2, _GATES, shape[1] // (2 * _GATES)), np.float32)
    bias[:, 0, _FORGET] = 1  # of the two biases that are added, the one of the input
    return bias.reshape(shape)
