"""Adam and AdamW as in torch.optim; AdamW also in the style of the transformers library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onward.optimizers.moments import Moments
from onward.optimizers.optimizer import Optimizer, Scalars, Shape, Slots, coefficient, regularized
from onward.optimizers.scalars import decay, times
from onward.optimizers.stored_slots import STATE_DTYPE, StoredSlot
from onward.settings import BETAS, check_fields, choice, number, true_or_false

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph.graph_ops import GraphOps


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """d = g + wd p,  p' = p - lr m^ / (sqrt(v^) + eps), m^ and v^ the corrected moments of d

    With amsgrad, v^ is the largest so far. The slots hold the moments as sums: torch's exp_avg is
    (1 - betas[0]) exp_sum, and its exp_avg_sq is (1 - betas[1]) exp_sum_sq.

    Attributes:
        lr: the learning rate
        betas: decays of the first and the second moment
        eps: added to the divisor, so that it is never 0
        weight_decay: added to the gradient as wd p (an L2 penalty)
        amsgrad: divide by the largest second moment so far
        maximize: go up the gradient instead of down
        state_dtype: "bf16": slots in bfloat16, half the memory; None: in the parameter's type

    >>> list(Adam(amsgrad=True).slots((3,)))
    ['exp_sum', 'exp_sum_sq', 'max_exp_sum_sq']
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    maximize: bool = False
    state_dtype: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, betas=BETAS, eps=number(), weight_decay=number())
        check_fields(self, amsgrad=true_or_false, maximize=true_or_false)
        check_fields(self, state_dtype=STATE_DTYPE)

    @property
    def _moments(self) -> Moments:
        return Moments(self.betas, self.eps, self.amsgrad)

    def slots(self, shape: Shape) -> dict[str, Shape]:
        return self._moments.slots(shape)

    def stored_slots(self) -> dict[str, StoredSlot]:
        return self._moments.stored_slots(self.state_dtype)

    def update(
        self, op: GraphOps, p: ir.Value, g: ir.Value, slots: Slots, by: Scalars
    ) -> tuple[ir.Value, Slots]:
        c = coefficient(op, by.scale, self.maximize)
        d, c = regularized(op, p, g, c, self.weight_decay)
        q, k, slots = self._moments.update(op, d, c, slots, by.step)
        return op.Sub(p, op.Mul(q, times(op, by.lr, k))), slots


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """p' = (1 - lr wd) p - lr m^ / (sqrt(v^) + eps), m^ and v^ the corrected moments of g

    style="torch" is torch.optim.AdamW; its slots hold the moments as sums, as Adam's do.
    style="transformers" is that of the library and of onnxruntime-training: eps is added to the
    root of the uncorrected second moment, the decay is last, slots exp_avg and exp_avg_sq:
    p' = (1 - lr wd) (p - lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)).

    correct_bias=False uses the moments without correction.

    Attributes:
        lr: the learning rate
        betas: decays of the first and the second moment
        eps: added to the divisor, so that it is never 0
        weight_decay: decoupled decay: p is multiplied by 1 - lr wd
        amsgrad: divide by the largest second moment so far
        maximize: go up the gradient instead of down
        correct_bias: correct the moments for their start at 0
        style: "torch" or "transformers"
        state_dtype: "bf16": slots in bfloat16, half the memory; None: in the parameter's type

    >>> list(AdamW().slots((3,))), list(AdamW(style="transformers").slots((3,)))
    (['exp_sum', 'exp_sum_sq'], ['exp_avg', 'exp_avg_sq'])
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    amsgrad: bool = False
    maximize: bool = False
    correct_bias: bool = True
    style: str = "torch"
    state_dtype: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, betas=BETAS, eps=number(), weight_decay=number())
        check_fields(self, **dict.fromkeys(("amsgrad", "maximize", "correct_bias"), true_or_false))
        check_fields(self, style=choice("torch", "transformers"), state_dtype=STATE_DTYPE)

    @property
    def _moments(self) -> Moments:
        torch = self.style == "torch"
        return Moments(self.betas, self.eps, self.amsgrad, self.correct_bias, torch, torch)

    def slots(self, shape: Shape) -> dict[str, Shape]:
        return self._moments.slots(shape)

    def stored_slots(self) -> dict[str, StoredSlot]:
        return self._moments.stored_slots(self.state_dtype)

    def update(
        self, op: GraphOps, p: ir.Value, g: ir.Value, slots: Slots, by: Scalars
    ) -> tuple[ir.Value, Slots]:
        c = coefficient(op, by.scale, self.maximize)
        q, k, slots = self._moments.update(op, g, c, slots, by.step)
        rate = times(op, by.lr, k)
        if self.weight_decay:
            kept = decay(op, by.lr, self.weight_decay)
            p = op.Mul(p, kept)
            if self.style == "transformers":
                rate = times(op, rate, kept)
        return op.Sub(p, op.Mul(q, rate)), slots
