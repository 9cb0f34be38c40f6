"""Cases of rules/activation.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, between, normal, spread


def unary(operator: str, feed: Any, note: str = "", **attributes: Any) -> Case:
    return Case(operator, lambda op, x: op.node(operator, [x], attributes), {"x": feed}, note)


X = spread(3, 4, gap=0.3)
ZEROS = np.array([-1.0, 0.0, 2.0])

CASES = [
    unary("Relu", X),
    unary("Relu", np.array(0.7), "rank 0"),
    Case("Relu", lambda op, x: op.Sqrt(op.Relu(x)), {"x": X}, "0, though the root's is infinite"),
    Case("Relu", lambda op, x: op.Relu(x), {"x": ZEROS}, "at zero: 0", differences=False),
    unary("LeakyRelu", X),
    unary("LeakyRelu", X, "slope above 1", alpha=1.5),
    unary("LeakyRelu", X, "negative slope", alpha=-0.5),
    Case(
        "LeakyRelu",
        lambda op, x: op.LeakyRelu(x, alpha=0.25),
        {"x": ZEROS},
        "at zero: alpha",
        differences=False,
    ),
    Case("PRelu", lambda op, x, slope: op.PRelu(x, slope), {"x": X, "slope": normal(3, 4)}),
    Case(
        "PRelu",
        lambda op, x, slope: op.PRelu(x, slope),
        {"x": spread(2, 3, 4), "slope": normal(3, 1)},
        "a slope for each channel",
    ),
    unary("ThresholdedRelu", X),
    unary("ThresholdedRelu", X, "alpha", alpha=0.2),
    unary("Shrink", X),
    unary("Shrink", X, "biased", lambd=0.8, bias=0.3),
    unary("HardSigmoid", spread(3, 4, gap=0.7)),
    unary("HardSigmoid", spread(3, 4, gap=0.7), "a sixth", alpha=1 / 6, beta=0.5),
    unary("HardSwish", spread(3, 4, gap=0.7)),
    unary("Elu", X),
    unary("Elu", X, "alpha", alpha=0.4),
    unary("Selu", X),
    unary("Selu", X, "own numbers", alpha=0.9, gamma=1.7),
    unary("Celu", X),
    unary("Celu", X, "alpha", alpha=2.5),
    unary("Sigmoid", normal(3, 4)),
    unary("Sigmoid", between(-30, 30, 3, 4), "far out"),
    unary("Softplus", normal(3, 4)),
    unary("Softplus", between(-60, 60, 3, 4), "far out"),
    unary("Softsign", X),
    unary("Mish", normal(3, 4)),
    unary("Mish", between(-30, 30, 3, 4), "far out"),
    unary("Swish", normal(3, 4)),
    unary("Swish", normal(3, 4), "alpha", alpha=1.7),
    Case(
        "SwiGLU",
        lambda op, a, b: op.SwiGLU(a, b, alpha=1.3),
        {"a": normal(3, 4), "b": normal(3, 4, seed=1)},
        ort=False,  # since opset 28
    ),
    unary("Gelu", normal(3, 4)),
    unary("Gelu", between(-12, 12, 3, 4), "far out"),
    unary("Gelu", normal(3, 4), "by tanh", approximate="tanh"),
    unary("Gelu", between(-12, 12, 3, 4), "by tanh, far out", approximate="tanh"),
    unary("Softmax", normal(2, 3, 4)),
    unary("Softmax", normal(2, 3, 4), "in the middle", axis=1),
    unary("Softmax", normal(2, 0), "empty"),
    unary("LogSoftmax", normal(2, 3, 4)),
    unary("LogSoftmax", normal(2, 3, 4), "from the back", axis=-3),
]
