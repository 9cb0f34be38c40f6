"""EMA: an exponential moving average of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onward.optimizers.json_records import record
from onward.optimizers.scalars import count, one_minus
from onward.settings import check_fields, number, true_or_false

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph.graph_ops import GraphOps


@dataclass(frozen=True, kw_only=True)
class EMA:
    """average' = d average + (1 - d) p', starting from the first weights

    With warm_up, d is at most (1 + t) / (10 + t), so that the first weights are soon forgotten.

    Attributes:
        decay: d, how much of the average is kept at each step
        warm_up: start with a smaller decay
    """

    decay: float = 0.999
    warm_up: bool = False

    def __post_init__(self) -> None:
        check_fields(self, decay=number(high=1.0), warm_up=true_or_false)

    def build(self, op: GraphOps, average: ir.Value, p: ir.Value, step: ir.Value) -> ir.Value:
        """The new average; p is the new parameter."""
        kept, fresh = self._shares(op, p, step)
        return op.Add(op.Mul(average, kept), op.Mul(p, fresh))

    def _shares(self, op: GraphOps, p: ir.Value, step: ir.Value) -> tuple[ir.Value, ir.Value]:
        """d and 1 - d, in p's type"""
        if not self.warm_up:
            return op.number_like(self.decay, p), op.number_like(1.0 - self.decay, p)
        t = count(op, step)
        d = op.Min(op.Div(op.Add(t, 1.0), op.Add(t, 10.0)), self.decay)
        return op.cast_like(d, p), op.cast_like(one_minus(op, d), p)

    def to_dict(self) -> dict[str, Any]:
        return record(self)
