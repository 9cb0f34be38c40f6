"""SGD: stochastic gradient descent, with momentum, as in torch.optim.SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onward.errors import OptionError
from onward.optimizers.optimizer import Optimizer, Scalars, Shape, Slots, coefficient, regularized
from onward.optimizers.scalars import decayed, plus, product, times
from onward.optimizers.stored_slots import STATE_DTYPE, StoredSlot, stored_in
from onward.settings import check_fields, number, true_or_false

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph.graph_ops import GraphOps
    from onward.optimizers.scalars import Number


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """d = g + wd p,  b' = momentum b + (1 - dampening) d (b' = d at first),  p' = p - lr b'

    With nesterov, p' = p - lr (d + momentum b').

    Attributes:
        lr: the learning rate
        momentum: how much of the last direction is kept; 0: none
        dampening: how much less of the gradient enters that direction
        weight_decay: added to the gradient as wd p (an L2 penalty)
        nesterov: look ahead along the direction
        maximize: go up the gradient instead of down
        state_dtype: "bf16": slots in bfloat16, half the memory; None: in the parameter's type

    >>> SGD(lr=0.1, momentum=0.9).slots((3, 4))
    {'momentum_buffer': (3, 4)}
    """

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    state_dtype: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, momentum=number(), weight_decay=number(), dampening=number(high=1.0))
        check_fields(self, nesterov=true_or_false, maximize=true_or_false)
        check_fields(self, state_dtype=STATE_DTYPE)
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise OptionError(
                "SGD.nesterov needs momentum above 0 and dampening 0, not "
                f"momentum={self.momentum!r} and dampening={self.dampening!r}\n"
                "set momentum, such as 0.9, and leave dampening out"
            )

    def slots(self, shape: Shape) -> dict[str, Shape]:
        return {"momentum_buffer": shape} if self.momentum else {}

    @property
    def skips_zero_gradients(self) -> bool:
        return not self.momentum and not self.weight_decay

    def stored_slots(self) -> dict[str, StoredSlot]:
        return stored_in(self.state_dtype, dict.fromkeys(self.slots(()), self.momentum))

    def update(
        self, op: GraphOps, p: ir.Value, g: ir.Value, slots: Slots, by: Scalars
    ) -> tuple[ir.Value, Slots]:
        c = coefficient(op, by.scale, self.maximize)
        if not self.momentum:
            # p - lr (c g + wd p) = (1 - lr wd) p - (lr c) g
            p = decayed(op, p, by.lr, self.weight_decay)
            return op.Sub(p, op.Mul(g, times(op, by.lr, c))), {}
        d, c = regularized(op, p, g, c, self.weight_decay)
        if self.nesterov:  # reads d twice
            d, c = (d, c) if isinstance(c, float) else (product(op, d, c), 1.0)
        share = times(op, c, self._share(op, p, by.step))
        buffer = plus(op, op.Mul(slots["momentum_buffer"], self.momentum), d, share)
        direction = plus(op, op.Mul(buffer, self.momentum), d, c) if self.nesterov else buffer
        return op.Sub(p, op.Mul(direction, by.lr)), {"momentum_buffer": buffer}

    def _share(self, op: GraphOps, p: ir.Value, step: ir.Value) -> Number:
        """1 - dampening, but 1 at the first step."""
        if not self.dampening:
            return 1.0
        later, first = op.number_like(1.0 - self.dampening, p), op.number_like(1.0, p)
        return op.Where(op.Equal(step, 1), first, later)
