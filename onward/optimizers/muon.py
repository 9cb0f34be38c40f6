"""Muon: orthogonalised momentum of matrices, as in torch.optim.Muon."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from onward.errors import OptionError
from onward.optimizers.optimizer import Optimizer, Scalars, Shape, Slots, coefficient
from onward.optimizers.scalars import decayed, plus, product, times
from onward.settings import check_fields, choice, integer, number, several, true_or_false

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph.graph_ops import GraphOps


@dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """b' = mu b + (1 - mu) g,  u = mu b' + (1 - mu) g or b',  p' = (1 - lr wd) p - lr r NS(u)

    NS is `ns_steps` Newton-Schulz iterations, X' = a X + (b X X^T + c (X X^T)^2) X, after X was
    divided by its norm; torch computes them in bfloat16, this in the parameter's type. r is
    sqrt(max(1, rows / columns)), or 0.2 sqrt(max(rows, columns)) with "match_rms_adamw".
    Parameters must be matrices; put others into a group with another optimizer.

    Attributes:
        lr: the learning rate
        weight_decay: decoupled decay: p is multiplied by 1 - lr wd
        momentum: mu, how much of the last direction is kept
        nesterov: look ahead along the direction
        ns_coefficients: a, b and c of the Newton-Schulz iterations
        eps: the least norm that a matrix is divided by
        ns_steps: the number of Newton-Schulz iterations
        adjust_lr_fn: the factor r: "original" or "match_rms_adamw"
    """

    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315)
    eps: float = 1e-7
    ns_steps: int = 5
    adjust_lr_fn: str = "original"

    elementwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(
            self,
            weight_decay=number(),
            momentum=number(high=1.0, below=True),
            nesterov=true_or_false,
            ns_coefficients=several(number(-math.inf), "three numbers", 3),
            eps=number(),
            ns_steps=integer(1),
            adjust_lr_fn=choice("original", "match_rms_adamw"),
        )

    def slots(self, shape: Shape) -> dict[str, Shape]:
        if len(shape) != 2:
            raise OptionError(
                f"Muon updates matrices, not a parameter of shape {tuple(shape)}\n"
                "give it to another optimizer: Group(parameters=..., optimizer=AdamW())"
            )
        return {"momentum_buffer": shape}

    def update(
        self, op: GraphOps, p: ir.Value, g: ir.Value, slots: Slots, by: Scalars
    ) -> tuple[ir.Value, Slots]:
        rows, columns = _matrix(p)
        share = times(op, coefficient(op, by.scale, False), 1.0 - self.momentum)
        fresh = product(op, g, share)
        buffer = plus(op, op.Mul(slots["momentum_buffer"], self.momentum), fresh, 1.0)
        u = op.Add(op.Mul(buffer, self.momentum), fresh) if self.nesterov else buffer
        u = self._orthogonal(op, u, wide=rows <= columns)
        ratio = math.sqrt(max(1.0, rows / columns))
        if self.adjust_lr_fn == "match_rms_adamw":
            ratio = 0.2 * math.sqrt(max(rows, columns))
        p = decayed(op, p, by.lr, self.weight_decay)
        return op.Sub(p, op.Mul(u, times(op, by.lr, ratio))), {"momentum_buffer": buffer}

    def _orthogonal(self, op: GraphOps, u: ir.Value, wide: bool) -> ir.Value:
        """NS(u); a tall matrix is multiplied from the right, so that the squares are small."""
        a, b, c = self.ns_coefficients
        x = op.Mul(u, op.Reciprocal(op.Max(op.ReduceL2(u, keepdims=0), self.eps)))
        for _ in range(self.ns_steps):
            square = op.Gemm(x, x, transB=1) if wide else op.Gemm(x, x, transA=1)
            factor = op.Gemm(square, square, square, alpha=c, beta=b)
            pair = (factor, x) if wide else (x, factor)
            x = op.Gemm(*pair, x, beta=a)
        return x


def _matrix(p: ir.Value) -> tuple[int, int]:
    assert p.shape is not None
    rows, columns = p.shape.numpy()
    return rows, columns
