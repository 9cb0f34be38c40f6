"""RMSprop: the gradient over the root of its average square, as in torch.optim.RMSprop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onward.optimizers.optimizer import Optimizer, Scalars, Shape, Slots, coefficient, regularized
from onward.optimizers.scalars import plus, times
from onward.settings import check_fields, number, true_or_false

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph.graph_ops import GraphOps


@dataclass(frozen=True, kw_only=True)
class RMSprop(Optimizer):
    """d = g + wd p,  v' = a v + (1 - a) d^2,  p' = p - lr d / (sqrt(v') + eps)

    centered subtracts the square of m' = a m + (1 - a) d under the root; with momentum,
    b' = momentum b + d / (sqrt(v') + eps) and p' = p - lr b'.

    Attributes:
        lr: the learning rate
        alpha: the decay a of the average of squares
        eps: added to the divisor, so that it is never 0
        weight_decay: added to the gradient as wd p (an L2 penalty)
        momentum: how much of the last direction is kept; 0: none
        centered: subtract the square of the average gradient
        maximize: go up the gradient instead of down

    >>> list(RMSprop(centered=True, momentum=0.9).slots((3,)))
    ['square_avg', 'grad_avg', 'momentum_buffer']
    """

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    maximize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, alpha=number(high=1.0, below=True))
        check_fields(self, eps=number(), weight_decay=number(), momentum=number())
        check_fields(self, centered=true_or_false, maximize=true_or_false)

    def slots(self, shape: Shape) -> dict[str, Shape]:
        kept = {"square_avg": True, "grad_avg": self.centered, "momentum_buffer": self.momentum}
        return {name: shape for name, wanted in kept.items() if wanted}

    def update(
        self, op: GraphOps, p: ir.Value, g: ir.Value, slots: Slots, by: Scalars
    ) -> tuple[ir.Value, Slots]:
        d, c = regularized(op, p, g, coefficient(op, by.scale, self.maximize), self.weight_decay)
        share = times(op, times(op, c, c), 1.0 - self.alpha)
        square = plus(op, op.Mul(slots["square_avg"], self.alpha), op.Mul(d, d), share)
        new, spread = {"square_avg": square}, square
        if self.centered:
            share = times(op, c, 1.0 - self.alpha)
            mean = plus(op, op.Mul(slots["grad_avg"], self.alpha), d, share)
            # Rounding must not make the difference negative: its root would stay NaN.
            spread = op.Max(op.Sub(square, op.Mul(mean, mean)), 0.0)
            new["grad_avg"] = mean
        direction = op.Div(d, op.Add(op.Sqrt(spread), self.eps))
        if not self.momentum:
            return op.Sub(p, op.Mul(direction, times(op, by.lr, c))), new
        buffer = plus(op, op.Mul(slots["momentum_buffer"], self.momentum), direction, c)
        return op.Sub(p, op.Mul(buffer, by.lr)), {**new, "momentum_buffer": buffer}
