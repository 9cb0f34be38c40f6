"""OneVersusRest: the loss of a classifier that has a Sigmoid for each class, and no Softmax."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onward.graph.graph_ops import GraphOps
from onward.losses.loss import Values, check_loss, check_rank, read, reduced
from onward.runner.plan.label_elements import class_range, label_elements


@dataclass(frozen=True, kw_only=True)
class OneVersusRest:
    """Binary cross entropy of every class, the mean over rows and classes.

    Attributes:
        output: the value with the scores (rows, classes)
        target: the input with the class of each row
        reduction: "mean", "sum" or "none" (one loss per row)
    """

    output: str
    target: str = "labels"
    reduction: str = "mean"

    def __post_init__(self) -> None:
        check_loss(self)

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        """(softplus(x) - t x), where t is 1 for the label and 0 for others; the mean of a row"""
        x = read(op, self, values, self.output)
        check_rank(self, x, 2, "scores of shape (rows, classes)")
        own = label_elements(op, self, x, values, self.target)
        rest = op.ReduceMean(op.Softplus(x), [1], keepdims=0)
        count = op.cast_like(op.Gather(op.Shape(x), [1]), x)
        each = op.Sub(rest, op.Div(own, count))
        return reduced(op, each, self.reduction)

    def allowed_labels(self, values: Values) -> tuple[int, int | None] | None:
        return class_range(values[self.output])
