"""LAMB: Adam's direction, scaled to the norm of the parameter (You et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from onward.optimizers.moments import Moments
from onward.optimizers.optimizer import Optimizer, Scalars, Shape, Slots, coefficient
from onward.optimizers.scalars import product
from onward.optimizers.stored_slots import STATE_DTYPE, StoredSlot
from onward.settings import BETAS, check_fields, number, true_or_false

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph.graph_ops import GraphOps


@dataclass(frozen=True, kw_only=True)
class LAMB(Optimizer):
    """r = m^ / (sqrt(v^) + eps) + wd p,  p' = p - lr |p| / |r| r

    m^ and v^ are Adam's corrected moments; the ratio is 1 where |p| or |r| is 0. The slots hold
    the moments as sums, as Adam's do.

    Attributes:
        lr: the learning rate
        betas: decays of the first and the second moment
        eps: added to the divisor, so that it is never 0
        weight_decay: wd in the formula
        correct_bias: correct the moments for their start at 0
        state_dtype: "bf16": slots in bfloat16, half the memory; None: in the parameter's type
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0
    correct_bias: bool = True
    state_dtype: str | None = None

    elementwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, betas=BETAS, eps=number(), weight_decay=number())
        check_fields(self, correct_bias=true_or_false, state_dtype=STATE_DTYPE)

    @property
    def _moments(self) -> Moments:
        return Moments(self.betas, self.eps, correct_bias=self.correct_bias)

    def slots(self, shape: Shape) -> dict[str, Shape]:
        return self._moments.slots(shape)

    def stored_slots(self) -> dict[str, StoredSlot]:
        return self._moments.stored_slots(self.state_dtype)

    def update(
        self, op: GraphOps, p: ir.Value, g: ir.Value, slots: Slots, by: Scalars
    ) -> tuple[ir.Value, Slots]:
        q, k, slots = self._moments.update(op, g, coefficient(op, by.scale, False), slots, by.step)
        r = product(op, q, k)
        if self.weight_decay:
            r = op.Add(r, op.Mul(p, self.weight_decay))
        size, length = (op.ReduceL2(each, keepdims=0) for each in (p, r))
        both = op.And(op.Greater(size, 0.0), op.Greater(length, 0.0))
        ratio = op.Where(both, op.Div(size, length), op.number_like(1.0, p))
        return op.Sub(p, op.Mul(r, op.Mul(by.lr, ratio))), slots
