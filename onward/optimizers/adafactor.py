"""Adafactor: second moments of matrices as row and column averages, as in torch.optim.Adafactor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from onward.optimizers.optimizer import Optimizer, Scalars, Shape, Slots, coefficient
from onward.optimizers.scalars import count, decayed, one_minus, plus, times
from onward.settings import check_fields, number, setting_error, true_or_false

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph.graph_ops import GraphOps
    from onward.optimizers.scalars import Number

EPSILONS = {"FLOAT": 2.0**-23, "DOUBLE": 2.0**-52}  # the gap after 1, by type


@dataclass(frozen=True, kw_only=True)
class Adafactor(Optimizer):
    """p' = (1 - lr wd) p - a u / max(1, rms(u) / d),  u = g / max(sqrt(v), eps[0])

    a = max(eps[1], rms(p)) min(lr, 1 / sqrt(t)), and v' = v + t^beta2_decay (x - v). For vectors
    x is g^2; for matrices (the last two axes) v is kept as the averages of rows and of columns of
    g^2, and is their outer product over the average of the rows. eps[0] is the precision of the
    parameter's type if it is None.

    Attributes:
        lr: the upper bound of the relative step size
        beta2_decay: how fast the average of squares forgets
        eps: (least divisor; None: the type's precision, least size of a parameter)
        d: the threshold at which updates are clipped
        weight_decay: decoupled decay: p is multiplied by 1 - lr wd
        maximize: go up the gradient instead of down

    >>> Adafactor().slots((8, 3, 4))
    {'row_var': (8, 3, 1), 'col_var': (8, 1, 4)}
    """

    lr: float = 1e-2
    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0
    weight_decay: float = 0.0
    maximize: bool = False

    elementwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(
            self,
            beta2_decay=number(-math.inf, 0.0),
            eps=_check_eps,
            d=number(1.0),
            weight_decay=number(),
            maximize=true_or_false,
        )

    def slots(self, shape: Shape) -> dict[str, Shape]:
        if len(shape) < 2:
            return {"variance": shape}
        *lead, rows, columns = shape
        return {"row_var": (*lead, rows, 1), "col_var": (*lead, 1, columns)}

    def update(
        self, op: GraphOps, p: ir.Value, g: ir.Value, slots: Slots, by: Scalars
    ) -> tuple[ir.Value, Slots]:
        c = coefficient(op, by.scale, self.maximize)
        t = count(op, by.step)
        share = op.Pow(t, op.number_like(self.beta2_decay, t))
        old, new = (op.cast_like(each, p) for each in (one_minus(op, share), share))
        root, slots = self._root(op, p, g, c, slots, (old, new))
        u = op.Div(g, root)  # without c, which multiplies the scalars
        step_size = op.Mul(self._parameter_scale(op, p), self._rho(op, by.lr, t))
        length = op.Mul(_rms(op, u), 1.0 / self.d)
        if not isinstance(c, float):
            length = op.Mul(length, op.Abs(c))
        rate = op.Div(step_size, op.Max(length, 1.0))
        p = decayed(op, p, by.lr, self.weight_decay)
        return op.Sub(p, op.Mul(u, times(op, rate, c))), slots

    def _parameter_scale(self, op: GraphOps, p: ir.Value) -> ir.Value:
        """max(eps[1], rms(p))"""
        return op.Max(_rms(op, p), self.eps[1])

    def _rho(self, op: GraphOps, lr: ir.Value, t: ir.Value) -> ir.Value:
        """min(lr, 1 / sqrt(t))"""
        return op.Min(lr, op.cast_like(op.Reciprocal(op.Sqrt(t)), lr))

    def _root(
        self,
        op: GraphOps,
        p: ir.Value,
        g: ir.Value,
        c: Number,
        slots: Slots,
        shares: tuple[ir.Value, ir.Value],
    ) -> tuple[ir.Value, Slots]:
        """max(sqrt(v), eps[0]) and the new slots."""
        assert p.dtype is not None
        eps = EPSILONS[p.dtype.name] if self.eps[0] is None else self.eps[0]
        kept, fresh = shares
        fresh_c = times(op, fresh, times(op, c, c))
        if "variance" in slots:
            square = op.Mul(op.Mul(g, g), fresh_c)
            variance = op.Add(op.Mul(slots["variance"], kept), square)
            return op.Max(op.Sqrt(variance), eps), {"variance": variance}
        factors = {}
        for name, axis in (("row_var", -1), ("col_var", -2)):
            mean = op.Mul(
                op.ReduceSumSquare(g, [axis], keepdims=1), 1.0 / max(1, _size(g, (axis,)))
            )
            factors[name] = plus(op, op.Mul(slots[name], kept), mean, fresh_c)
        row, column = factors.values()
        share = op.Max(op.ReduceMean(row, [-2], keepdims=1), eps)
        # sqrt(max(r c, e^2)) = max(sqrt(r) sqrt(c), e): the roots are taken of rows and columns
        root = op.Mul(op.Sqrt(op.Div(row, share)), op.Sqrt(column))
        return op.Max(root, eps), factors


def _check_eps(name: str, value: Any) -> tuple[float | None, float]:
    """Two numbers, at least 0; the first may be None."""
    numbers = list(value) if isinstance(value, (tuple, list)) else []
    valid = [isinstance(each, (int, float)) and 0.0 <= each < math.inf for each in numbers]
    if len(valid) != 2 or not (valid[0] or numbers[0] is None) or not valid[1]:
        law = "two numbers, at least 0, the first of which may be None"
        raise setting_error(name, law, value)
    return numbers[0], numbers[1]


def _rms(op: GraphOps, x: ir.Value) -> ir.Value:
    """The root mean square."""
    return op.Mul(op.ReduceL2(x, keepdims=0), max(1, _size(x)) ** -0.5)


def _size(x: ir.Value, axes: Sequence[int] | None = None) -> int:
    """The number of elements of x, or along these axes."""
    assert x.shape is not None
    sizes = x.shape.numpy()
    return math.prod(sizes if axes is None else (sizes[axis] for axis in axes))
