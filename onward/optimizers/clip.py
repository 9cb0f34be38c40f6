"""Clip gradients by their norm or by value.

By norm, it is a factor, torch's max_norm / (norm + 1e-6), which updates take as `gradient_scale`;
by value, it is a node in the update graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onward.optimizers.json_records import record
from onward.settings import above, check_fields

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph.graph_ops import GraphOps

NORM = "norm_squared"  # an update's input: the sum of squares of all gradients, before scaling
MARGIN = 1e-6  # torch's: avoids a division by 0


@dataclass(frozen=True, kw_only=True)
class ClipByNorm:
    """Limit the norm of all gradients together, as torch.nn.utils.clip_grad_norm_.

    Attributes:
        max_norm: the largest norm of all gradients together

    >>> ClipByNorm(max_norm=1.0).scale(4.0)
    0.24999993750001562
    """

    max_norm: float

    def __post_init__(self) -> None:
        check_fields(self, max_norm=above(0.0))

    def scale(self, norm: float) -> float:
        """The factor for gradients of this norm; 0 or NaN if it is not finite."""
        ratio = self.max_norm / (norm + MARGIN)
        return 1.0 if ratio > 1.0 else ratio

    def build(self, op: GraphOps, gradients: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value]:
        """(norm, scale) of these gradients, as scalars of float32."""
        norm = global_norm(op, gradients)
        ratio = op.Div(self.max_norm, op.Add(norm, MARGIN))
        return norm, op.Min(ratio, 1.0)

    def scaled(self, op: GraphOps, scale: ir.Value, squares: ir.Value) -> ir.Value:
        """A gradient scale that also clips, given the gradients' sum of squares in float64."""
        share = op.cast_like(scale, squares)
        norm = op.Mul(op.Sqrt(squares), share)
        ratio = op.Div(self.max_norm, op.Add(norm, MARGIN))
        return op.cast_like(op.Mul(op.Min(ratio, 1.0), share), scale)

    def to_dict(self) -> dict[str, Any]:
        return record(self)


@dataclass(frozen=True, kw_only=True)
class ClipByValue:
    """Limit each element of a gradient to -limit ... limit, as torch's clip_grad_value_.

    Attributes:
        limit: the largest absolute value of an element
    """

    limit: float

    def __post_init__(self) -> None:
        check_fields(self, limit=above(0.0))

    def build(self, op: GraphOps, g: ir.Value, scale: ir.Value | None = None) -> ir.Value:
        """The clipped gradient; with a scale (above 0), its product with the scale is clipped."""
        if scale is None:
            return op.Clip(g, op.number_like(-self.limit, g), op.number_like(self.limit, g))
        limit = op.Div(op.number_like(self.limit, g), scale)
        return op.Clip(g, op.Neg(limit), limit)

    def to_dict(self) -> dict[str, Any]:
        return record(self)


def global_norm(op: GraphOps, gradients: Sequence[ir.Value]) -> ir.Value:
    """The norm of all gradients as one vector: a scalar of float32."""
    squares = [op.ReduceSumSquare(g, keepdims=0) for g in gradients]
    parts = [op.Cast(each, to=1) if each.dtype != 1 else each for each in squares]
    return op.Sqrt(op.Sum(*parts) if len(parts) > 1 else parts[0])
