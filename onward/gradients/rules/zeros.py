"""Products that may hold zeros, so that they can be divided by each of their factors."""

from __future__ import annotations

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps


class Zeros:
    """x taken apart: factors that are not 0 (1 where x is), and the zeros (0 where x is not)."""

    def __init__(self, op: GradientOps, x: ir.Value) -> None:
        self._op = op
        self.places = op.Equal(x, 0.0)
        self.factors = op.Where(self.places, 1.0, x)
        self.flags = op.cast_like(self.places, x)
        self.zeros = op.Where(self.places, x, 0.0)  # no constant: a slope goes through

    def product(self, count: ir.Value, total: ir.Value, besides: int = 0) -> ir.Value:
        """The product of the zeros that there are besides some, given their number and their sum.

        No zeros: 1. One: itself, which is their sum; its value is 0, its slope is not, and second
        derivatives ask for it. Two and more: 0.
        """
        op = self._op
        alone = op.Mul(self.exactly(besides + 1, count), total)
        return op.Add(self.exactly(besides, count), alone)

    def exactly(self, number: int, count: ir.Value) -> ir.Value:
        """1 where the count is this number, else 0."""
        op = self._op
        return op.cast_like(op.Equal(count, float(number)), count)
