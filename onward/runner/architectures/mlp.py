"""A multilayer perceptron."""

from __future__ import annotations

from typing import Any, Literal

import onnx_ir as ir

from onward.runner.architectures import layers as layer
from onward.runner.architectures.initial_weights import he_normal, xavier_uniform
from onward.runner.architectures.network import NetworkBuilder

Activations = Literal["relu", "gelu", "tanh"]

_OPERATORS = {"relu": "Relu", "gelu": "Gelu", "tanh": "Tanh"}


def mlp(
    net: NetworkBuilder,
    *,
    features: int = 64,
    hidden: tuple[int, ...] = (128, 128),
    classes: int = 10,
    activation: Activations = "relu",
    dropout: float = 0.0,
) -> ir.Model:
    """Multilayer perceptron: x (batch, features) -> scores of classes, or numbers.

    Options:
        features: columns of the data
        hidden: sizes of the hidden layers
        classes: classes; 1 to predict a number
        activation: after each hidden layer
        dropout: share dropped after each hidden layer
    """
    x: Any = net.op.input("x", "float32", ("batch", features))
    draw = xavier_uniform if activation == "tanh" else he_normal
    for i, size in enumerate(hidden, 1):
        x = layer.linear(net, x, f"hidden{i}", size, draw)
        x = getattr(net.op, _OPERATORS[activation])(x)
        x = layer.dropout(net, x, dropout)
    return net.op.model(scores=layer.linear(net, x, "scores", classes, xavier_uniform))
