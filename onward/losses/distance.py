"""Losses for embeddings: distances of vectors along the last axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.graph_ops import GraphOps
from onward.losses.loss import (
    Values,
    agree,
    check_loss,
    check_rank,
    read,
    reduced,
    shown,
    sizes_of,
    target,
    target_like,
)
from onward.settings import above, nonempty_name, number, optional, true_or_false

_TINY = 1e-12  # added to squared lengths, as torch does: a vector of zeros has a gradient


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """1 - cos for similar pairs, max(0, cos - margin) for dissimilar pairs.

    Attributes:
        output: the output with the vectors; None: the first one
        target: the other vectors: a second output of the model, or else a new input
        labels: the input with 1 (similar) or -1 (dissimilar) for each pair; None: all are similar
        margin: the cosine up to which dissimilar pairs have no loss
        reduction: "mean", "sum" or "none" (one loss per element)
    """

    output: str | None = None
    target: str = "target"
    labels: str | None = None
    margin: float = 0.0
    reduction: str = "mean"

    def __post_init__(self) -> None:
        check_loss(self, labels=optional(nonempty_name), margin=number(-1.0, 1.0))

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        """cos = a b / (|a| |b|)"""
        a = read(op, self, values, self.output)
        check_rank(self, a, 1, "vectors along the last axis")
        b = target_like(op, self, a, values, self.target)
        along = op.ReduceSum(op.Mul(a, b), [-1], keepdims=0)
        cos = op.Div(along, op.Mul(_length(op, a), _length(op, b)))
        alike = op.Sub(1.0, cos)
        if self.labels is None:
            return reduced(op, alike, self.reduction)
        labels = target(op, self, values, self.labels, "int64", sizes_of(a)[:-1])
        apart = op.Relu(op.Sub(cos, self.margin))
        unlike = op.Where(op.Equal(labels, -1), apart, 0.0)
        return reduced(op, op.Where(op.Equal(labels, 1), alike, unlike), self.reduction)


@dataclass(frozen=True, kw_only=True)
class Triplet:
    """max(0, margin + |anchor - positive| - |anchor - negative|), in the p-norm.

    All three are values of the model: an encoder with three outputs. With `swap`, the negative's
    distance to the positive counts where that is the smaller one.

    Attributes:
        output: the output with the anchors; None: the first one
        positive: the value with vectors similar to the anchors
        negative: the value with vectors dissimilar to the anchors
        margin: how much farther the negative has to be
        p: the norm: 2 is the Euclidean distance
        eps: added to differences
        swap: use the distance from positive to negative where that is smaller
        reduction: "mean", "sum" or "none" (one loss per element)
    """

    output: str | None = None
    positive: str = "positive"
    negative: str = "negative"
    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False
    reduction: str = "mean"

    def __post_init__(self) -> None:
        check_loss(
            self,
            positive=nonempty_name,
            negative=nonempty_name,
            margin=above(0.0),
            p=above(0.0, infinite=True),
            eps=number(),
            swap=true_or_false,
        )

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        anchor = read(op, self, values, self.output)
        check_rank(self, anchor, 1, "vectors along the last axis")
        positive, negative = (
            self._fitting(anchor, read(op, self, values, name))
            for name in (self.positive, self.negative)
        )
        near = self._distance(op, anchor, positive)
        far = self._distance(op, anchor, negative)
        if self.swap:
            far = op.Min(far, self._distance(op, positive, negative))
        each = op.Relu(op.Add(op.Sub(near, far), self.margin))
        return reduced(op, each, self.reduction)

    def _fitting(self, anchor: ir.Value, other: ir.Value) -> ir.Value:
        if not agree(sizes_of(anchor), sizes_of(other)) or anchor.dtype != other.dtype:
            raise OptionError(
                f"Triplet compares {anchor.name!r} of shape {shown(anchor)} "
                f"with {other.name!r} of shape {shown(other)}: they must have one shape and type"
            )
        return other

    def _distance(self, op: GraphOps, a: ir.Value, b: ir.Value) -> ir.Value:
        """(sum of |a - b + eps|^p)^(1/p)"""
        d = op.Add(op.Sub(a, b), self.eps)
        if self.p == 2:
            return op.ReduceL2(d, [-1], keepdims=0)
        if self.p == 1:
            return op.ReduceL1(d, [-1], keepdims=0)
        if math.isinf(self.p):
            return op.ReduceMax(op.Abs(d), [-1], keepdims=0)
        powers = op.Pow(op.Abs(d), op.number_like(self.p, d))
        return op.Pow(op.ReduceSum(powers, [-1], keepdims=0), op.number_like(1 / self.p, d))


def _length(op: GraphOps, x: ir.Value) -> ir.Value:
    squares = op.ReduceSumSquare(x, [-1], keepdims=0)
    return op.Sqrt(op.Add(squares, _TINY))
