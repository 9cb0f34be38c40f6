"""LogLikelihood: the loss of a classifier whose probabilities have no scores before them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.graph.graph_ops import GraphOps
from onward.losses.loss import Values, check_loss, check_rank, read, reduced
from onward.runner.plan.label_elements import class_range, label_elements

_LEAST = float(np.finfo(np.float32).tiny)  # a probability of 0 has a finite logarithm


@dataclass(frozen=True, kw_only=True)
class LogLikelihood:
    """The negative logarithm of the label's probability, the mean over rows.

    Attributes:
        output: the value with the probabilities (rows, classes)
        target: the input with the class of each row
        reduction: "mean", "sum" or "none" (one loss per row)
    """

    output: str
    target: str = "labels"
    reduction: str = "mean"

    def __post_init__(self) -> None:
        check_loss(self)

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        """-log(p of the label)"""
        p = read(op, self, values, self.output)
        check_rank(self, p, 2, "probabilities of shape (rows, classes)")
        own = label_elements(op, self, p, values, self.target)
        least = op.cast_like(op.constant(np.array(_LEAST, np.float32)), p)
        return reduced(op, op.Neg(op.Log(op.Max(own, least))), self.reduction)

    def allowed_labels(self, values: Values) -> tuple[int, int | None] | None:
        return class_range(values[self.output])
