"""Adagrad: the gradient over the root of the sum of its squares, as in torch.optim.Adagrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onward.optimizers.optimizer import Optimizer, Scalars, Shape, Slots, coefficient, regularized
from onward.optimizers.scalars import count, plus, times
from onward.settings import check_fields, number, true_or_false

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph.graph_ops import GraphOps


@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    """d = g + wd p,  s' = s + d^2,  p' = p - lr / (1 + (t - 1) lr_decay) d / (sqrt(s') + eps)

    Attributes:
        lr: the learning rate
        lr_decay: how fast the learning rate falls with the steps
        weight_decay: added to the gradient as wd p (an L2 penalty)
        initial_accumulator_value: the first value of the sum of squares
        eps: added to the divisor, so that it is never 0
        maximize: go up the gradient instead of down

    >>> Adagrad(initial_accumulator_value=0.1).initial("sum")
    0.1
    """

    lr: float = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    maximize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("lr_decay", "weight_decay", "initial_accumulator_value", "eps")
        check_fields(self, **dict.fromkeys(names, number()), maximize=true_or_false)

    def slots(self, shape: Shape) -> dict[str, Shape]:
        return {"sum": shape}

    def initial(self, slot: str) -> float:
        return self.initial_accumulator_value

    @property
    def skips_zero_gradients(self) -> bool:
        return not self.weight_decay and self.eps > 0

    def update(
        self, op: GraphOps, p: ir.Value, g: ir.Value, slots: Slots, by: Scalars
    ) -> tuple[ir.Value, Slots]:
        d, c = regularized(op, p, g, coefficient(op, by.scale, self.maximize), self.weight_decay)
        total = plus(op, slots["sum"], op.Mul(d, d), times(op, c, c))
        direction = op.Div(d, op.Add(op.Sqrt(total), self.eps))
        rate = times(op, self._rate(op, by.lr, by.step), c)
        return op.Sub(p, op.Mul(direction, rate)), {"sum": total}

    def _rate(self, op: GraphOps, lr: ir.Value, step: ir.Value) -> ir.Value:
        """lr / (1 + (t - 1) lr_decay)"""
        if not self.lr_decay:
            return lr
        divisor = op.Add(op.Mul(op.Sub(count(op, step), 1.0), self.lr_decay), 1.0)
        return op.Div(lr, op.cast_like(divisor, lr))
