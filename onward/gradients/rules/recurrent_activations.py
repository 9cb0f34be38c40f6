"""The activations of recurrent layers: y = f(x), and their slopes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.passes.value_facts import attribute

Function = Callable[..., ir.Value]


@dataclass(frozen=True)
class Activation:
    """y = f(x), x perhaps clipped; slope(x, y) = f'(x)."""

    op: GradientOps
    function: Function  # (op, x, *numbers)
    derivative: Function  # (op, x, y, *numbers)
    numbers: tuple[float, ...]  # alpha, beta
    clip: float | None = None

    def __call__(self, x: ir.Value) -> ir.Value:
        return self.function(self.op, self._clipped(x), *self.numbers)

    def slope(self, x: ir.Value, y: ir.Value) -> ir.Value:
        slope = self.derivative(self.op, self._clipped(x), y, *self.numbers)
        if self.clip is None:
            return slope
        inside = self.op.LessOrEqual(self.op.Abs(x), self.clip)
        return self.op.Mul(slope, self.op.cast_like(inside, x))

    def inside(self, op: GradientOps) -> Activation:
        """The same activation for a subgraph."""
        return replace(self, op=op)

    def _clipped(self, x: ir.Value) -> ir.Value:
        return x if self.clip is None else self.op.Clip(x, -self.clip, self.clip)


def _one_minus_square(op: GradientOps, x: Any, y: Any) -> Any:
    return op.Sub(1.0, op.Mul(y, y))


def _elu_slope(op: GradientOps, x: Any, y: Any, alpha: float) -> Any:
    return op.Where(op.Greater(x, 0.0), op.number_like(1.0, x), op.Add(y, alpha))


def _leaky_slope(op: GradientOps, x: Any, y: Any, alpha: float) -> Any:
    return op.Where(op.Greater(x, 0.0), op.number_like(1.0, x), op.number_like(alpha, x))


def _hard_slope(op: GradientOps, x: Any, y: Any, alpha: float, beta: float) -> Any:
    inside = op.And(op.Greater(y, 0.0), op.Less(y, 1.0))
    return op.Mul(op.cast_like(inside, x), alpha)


def _softsign_slope(op: GradientOps, x: Any, y: Any) -> Any:
    size = op.Add(op.Abs(x), 1.0)
    return op.Reciprocal(op.Mul(size, size))


def _scaled_tanh_slope(op: GradientOps, x: Any, y: Any, alpha: float, beta: float) -> Any:
    t = op.Tanh(op.Mul(x, beta))
    return op.Mul(op.Sub(1.0, op.Mul(t, t)), alpha * beta)


# name: function, slope, defaults of alpha and beta
_ACTIVATIONS: dict[str, tuple[Function, Function, tuple[float, ...]]] = {
    "relu": (lambda op, x: op.Relu(x), lambda op, x, y: op.Sign(y), ()),
    "tanh": (lambda op, x: op.Tanh(x), _one_minus_square, ()),
    "sigmoid": (
        lambda op, x: op.Sigmoid(x),
        lambda op, x, y: op.Mul(y, op.Sub(1.0, y)),
        (),
    ),
    "affine": (
        lambda op, x, alpha, beta: op.Add(op.Mul(x, alpha), beta),
        lambda op, x, y, alpha, beta: op.filled_like(x, alpha),
        (1.0, 0.0),
    ),
    "leakyrelu": (lambda op, x, alpha: op.LeakyRelu(x, alpha=alpha), _leaky_slope, (0.01,)),
    "thresholdedrelu": (
        lambda op, x, alpha: op.Where(op.GreaterOrEqual(x, alpha), x, 0.0),
        lambda op, x, y, alpha: op.cast_like(op.GreaterOrEqual(x, alpha), x),
        (1.0,),
    ),
    "scaledtanh": (
        lambda op, x, alpha, beta: op.Mul(op.Tanh(op.Mul(x, beta)), alpha),
        _scaled_tanh_slope,
        (1.0, 1.0),
    ),
    "hardsigmoid": (
        lambda op, x, alpha, beta: op.HardSigmoid(x, alpha=alpha, beta=beta),
        _hard_slope,
        (0.2, 0.5),
    ),
    "elu": (lambda op, x, alpha: op.Elu(x, alpha=alpha), _elu_slope, (1.0,)),
    "softsign": (lambda op, x: op.Softsign(x), _softsign_slope, ()),
    "softplus": (lambda op, x: op.Softplus(x), lambda op, x, y: op.Sigmoid(x), ()),
}

_DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def activations(op: GradientOps, node: ir.Node, direction: int) -> list[Activation]:
    """The activations of a direction; each takes the next given alpha and beta."""
    defaults = _DEFAULTS[node.op_type]
    count = len(defaults)
    names = attribute(node, "activations") or defaults * 2
    alphas = iter(attribute(node, "activation_alpha") or ())
    betas = iter(attribute(node, "activation_beta") or ())
    clip = attribute(node, "clip")
    made = [_activation(op, name, alphas, betas, clip) for name in names]
    chosen = made[count * direction : count * (direction + 1)]
    if node.op_type == "LSTM":  # h reads the cell, which is not clipped
        chosen[2] = replace(chosen[2], clip=None)
    return chosen


def _activation(
    op: GradientOps, name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None
) -> Activation:
    function, slope, defaults = _ACTIVATIONS[name.lower()]
    numbers = tuple(next(given, default) for given, default in zip((alphas, betas), defaults))
    return Activation(op, function, slope, numbers, clip)
