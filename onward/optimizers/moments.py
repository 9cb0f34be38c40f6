"""The two moments of Adam, stored as sums or as averages.

torch has averages, m' = b1 m + (1 - b1) g and v' = b2 v + (1 - b2) g^2. The sums M = m / (1 - b1)
and V = v / (1 - b2) obey M' = b1 M + g and V' = b2 V + g^2: two passes over memory less, because
the factors are merged into scalars.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from onward.optimizers.optimizer import Shape, Slots
from onward.optimizers.scalars import count, one_minus, plus, power, product, times
from onward.optimizers.stored_slots import StoredSlot, stored_in

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph.graph_ops import GraphOps
    from onward.optimizers.scalars import Number

SUMS = ("exp_sum", "exp_sum_sq", "max_exp_sum_sq")
AVERAGES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


class Moments(NamedTuple):
    """The settings of Adam's moments, and their update."""

    betas: tuple[float, float]
    eps: float
    amsgrad: bool = False
    correct_bias: bool = True
    sums: bool = True
    corrected_eps: bool = True  # eps is added to sqrt(v / (1 - b2^t)), as in torch, or to sqrt(v)

    def slots(self, shape: Shape) -> dict[str, Shape]:
        names = SUMS if self.sums else AVERAGES
        return dict.fromkeys(names if self.amsgrad else names[:2], shape)

    def stored_slots(self, state_dtype: str | None) -> dict[str, StoredSlot]:
        """How the slots are stored; the largest second moment changes only where it grows."""
        return stored_in(state_dtype, dict(zip(self.slots(()), (*self.betas, 0.0))))

    def update(
        self, op: GraphOps, d: ir.Value, c: Number, slots: Slots, step: ir.Value
    ) -> tuple[ir.Value, Number, Slots]:
        """(q, k, new slots), where k q = m^ / (sqrt(v^) + eps) for the gradient c d."""
        news = self._moments(op, d, c, slots)
        k, eps = self._scalars(op, step, d)
        first, *_, second = news.values()
        root = op.Sqrt(second)
        denominator = root if isinstance(eps, float) and eps == 0.0 else op.Add(root, eps)
        return op.Div(first, denominator), k, news

    def _moments(self, op: GraphOps, d: ir.Value, c: Number, slots: Slots) -> Slots:
        """The new slots: first and second moment, and with amsgrad the largest second one."""
        names = list(self.slots(()))
        m, v, *largest = (slots[name] for name in names)
        b1, b2 = self.betas
        if self.sums:
            if not isinstance(c, float):
                d, c = product(op, d, c), 1.0
            first = plus(op, op.Mul(m, b1), d, c)
            second = op.Add(op.Mul(v, b2), op.Mul(d, d))
        else:
            first = plus(op, op.Mul(m, b1), d, times(op, c, 1.0 - b1))
            share = times(op, times(op, c, c), 1.0 - b2)
            second = plus(op, op.Mul(v, b2), op.Mul(d, d), share)
        news = [first, second]
        if largest:
            news.append(op.Max(largest[0], second))
        return dict(zip(names, news))

    def _scalars(self, op: GraphOps, step: ir.Value, like: ir.Value) -> tuple[Number, Number]:
        """k, and the eps to add to sqrt(V).

        With m = k1 M, v = k2^2 V and the corrections c1 = 1 - b1^t, c2 = 1 - b2^t:
        (m / c1) / (sqrt(v / c2) + eps) = (k1 sqrt(c2)) / (k2 c1) M / (sqrt(V) + eps sqrt(c2) / k2)
        """
        b1, b2 = self.betas
        k1 = 1.0 - b1 if self.sums else 1.0
        k2 = math.sqrt(1.0 - b2) if self.sums else 1.0
        if not self.correct_bias:
            return k1 / k2, self.eps / k2
        t = count(op, step)
        root = op.Sqrt(one_minus(op, power(op, b2, t)))
        factor = op.Mul(op.Div(root, one_minus(op, power(op, b1, t))), k1 / k2)
        eps: Number = self.eps / k2
        if self.corrected_eps and self.eps:
            eps = op.cast_like(op.Mul(root, eps), like)
        return op.cast_like(factor, like), eps
