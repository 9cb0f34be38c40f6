"""Losses for regression: the output and a target of its shape, element by element.

x: the output; t: the target; d = x - t.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onward.graph.graph_ops import GraphOps
from onward.losses.loss import Loss, Values, check_loss, read, reduced, target_like
from onward.settings import above, number


@dataclass(frozen=True, kw_only=True)
class MSE:
    """Mean squared error: d^2.

    Attributes:
        output: the model's output that is compared; None: the first one
        target: the name of the input that holds the targets
        reduction: "mean", "sum" or "none" (one loss per element)

    >>> MSE(reduction="sum")
    MSE(output=None, target='target', reduction='sum')
    """

    output: str | None = None
    target: str = "target"
    reduction: str = "mean"

    def __post_init__(self) -> None:
        check_loss(self)

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        d = _difference(op, self, values, self.output, self.target)
        return reduced(op, op.Mul(d, d), self.reduction)


@dataclass(frozen=True, kw_only=True)
class L1:
    """Mean absolute error: |d|.

    Attributes:
        output: the model's output that is compared; None: the first one
        target: the name of the input that holds the targets
        reduction: "mean", "sum" or "none" (one loss per element)
    """

    output: str | None = None
    target: str = "target"
    reduction: str = "mean"

    def __post_init__(self) -> None:
        check_loss(self)

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        d = _difference(op, self, values, self.output, self.target)
        return reduced(op, op.Abs(d), self.reduction)


@dataclass(frozen=True, kw_only=True)
class Huber:
    """Quadratic up to delta, linear beyond: d^2 / 2, or delta (|d| - delta / 2).

    Attributes:
        output: the model's output that is compared; None: the first one
        target: the name of the input that holds the targets
        delta: the difference at which the loss becomes linear
        reduction: "mean", "sum" or "none" (one loss per element)
    """

    output: str | None = None
    target: str = "target"
    delta: float = 1.0
    reduction: str = "mean"

    def __post_init__(self) -> None:
        check_loss(self, delta=above(0.0, infinite=True))

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        d = _difference(op, self, values, self.output, self.target)
        return reduced(op, _huber(op, d, self.delta), self.reduction)


@dataclass(frozen=True, kw_only=True)
class SmoothL1:
    """Huber loss divided by beta: d^2 / (2 beta), or |d| - beta / 2; with beta 0, |d|.

    Attributes:
        output: the model's output that is compared; None: the first one
        target: the name of the input that holds the targets
        beta: the difference at which the loss becomes linear
        reduction: "mean", "sum" or "none" (one loss per element)
    """

    output: str | None = None
    target: str = "target"
    beta: float = 1.0
    reduction: str = "mean"

    def __post_init__(self) -> None:
        check_loss(self, beta=number())

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        d = _difference(op, self, values, self.output, self.target)
        if self.beta == 0:
            return reduced(op, op.Abs(d), self.reduction)
        return reduced(op, op.Mul(_huber(op, d, self.beta), 1 / self.beta), self.reduction)


def _difference(
    op: GraphOps, loss: Loss, values: Values, output: str | None, target: str
) -> ir.Value:
    x = read(op, loss, values, output)
    return op.Sub(x, target_like(op, loss, x, values, target))


def _huber(op: GraphOps, d: ir.Value, delta: float) -> ir.Value:
    """c (d - c / 2) with c = clip(d, -delta, delta): no branch that could overflow"""
    c = op.Clip(d, -delta, delta)
    return op.Mul(c, op.Sub(d, op.Mul(c, 0.5)))
