"""Products that may contain zeros, divided by each of their factors."""

from __future__ import annotations

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps


class Zeros:
    """x split into nonzero factors (1 where x is 0), and zeros (0 where x is not 0)."""

    def __init__(self, op: GradientOps, x: ir.Value) -> None:
        self._op = op
        self.places = op.Equal(x, 0.0)
        self.factors = op.Where(self.places, 1.0, x)
        self.flags = op.cast_like(self.places, x)
        self.zeros = op.Where(self.places, x, 0.0)  # not a constant: it has a slope

    def product(self, count: ir.Value, total: ir.Value, besides: int = 0) -> ir.Value:
        """The product of the zeros except `besides`, given their number and their sum.

        No zeros: 1. One: the zero itself, which is their sum; its value is 0, but its slope, which
        second derivatives need, is not. Two or more: 0.
        """
        op = self._op
        alone = op.Mul(self.exactly(besides + 1, count), total)
        return op.Add(self.exactly(besides, count), alone)

    def exactly(self, number: int, count: ir.Value) -> ir.Value:
        """1 where the count is this number, else 0."""
        op = self._op
        return op.cast_like(op.Equal(count, float(number)), count)
