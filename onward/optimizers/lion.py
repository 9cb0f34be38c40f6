"""Lion: updates by the sign of an average gradient (Chen et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onward.optimizers.optimizer import Optimizer, Scalars, Shape, Slots
from onward.optimizers.scalars import decayed
from onward.optimizers.stored_slots import STATE_DTYPE, StoredSlot, stored_in
from onward.settings import BETAS, check_fields, number

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph.graph_ops import GraphOps


@dataclass(frozen=True, kw_only=True)
class Lion(Optimizer):
    """p' = (1 - lr wd) p - lr sign(b1 m + (1 - b1) g),  m' = b2 m + (1 - b2) g

    The slot holds m / (1 - b2), a sum: exp_sum' = b2 exp_sum + g.

    Attributes:
        lr: the learning rate
        betas: b1 for the sign, b2 for the average
        weight_decay: decoupled decay: p is multiplied by 1 - lr wd
        state_dtype: "bf16": slots in bfloat16, half the memory; None: in the parameter's type

    >>> Lion().slots((3,))
    {'exp_sum': (3,)}
    """

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    state_dtype: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, betas=BETAS, weight_decay=number(), state_dtype=STATE_DTYPE)

    def slots(self, shape: Shape) -> dict[str, Shape]:
        return {"exp_sum": shape}

    def stored_slots(self) -> dict[str, StoredSlot]:
        return stored_in(self.state_dtype, {"exp_sum": self.betas[1]})

    def update(
        self, op: GraphOps, p: ir.Value, g: ir.Value, slots: Slots, by: Scalars
    ) -> tuple[ir.Value, Slots]:
        b1, b2 = self.betas
        g = g if by.scale is None else op.Mul(g, by.scale)
        # b1 m + (1 - b1) g and k M + g have the same sign.
        k = b1 * (1.0 - b2) / (1.0 - b1)
        if k:
            # The old sum is read once, before the new one is written: they may share memory.
            scaled = op.Mul(slots["exp_sum"], k)
            direction, total = op.Add(scaled, g), op.Add(op.Mul(scaled, b2 / k), g)
        else:
            direction, total = g, op.Add(op.Mul(slots["exp_sum"], b2), g)
        kept = decayed(op, p, by.lr, self.weight_decay)
        return op.Sub(kept, op.Mul(op.Sign(direction), by.lr)), {"exp_sum": total}
