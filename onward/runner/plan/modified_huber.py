"""ModifiedHuber: the loss of a classifier whose probabilities are scores cut off at 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.graph.graph_ops import GraphOps
from onward.losses.loss import Values, check_loss, check_rank, read, reduced, target_like
from onward.runner.plan.label_elements import class_range, label_elements


@dataclass(frozen=True, kw_only=True)
class ModifiedHuber:
    """Modified Huber loss: least at the scores s whose (s + 1) / 2 is the probability.

    Rows that are wrong by more than that have a constant gradient, where the probability has none.

    Attributes:
        output: the value with the scores, (rows, classes) if each class has its own
        target: the input with 0 or 1 for each score, or the class of each row
        classes: whether the target is the class of each row
        reduction: "mean", "sum" or "none"
    """

    output: str
    target: str = "labels"
    classes: bool = False
    reduction: str = "mean"

    def __post_init__(self) -> None:
        check_loss(self)

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        """h(z) = max(0, 1 - z)^2 where z >= -1, else -4 z; z is s, and -s where the target is 0"""
        s = read(op, self, values, self.output)
        if not self.classes:
            t = target_like(op, self, s, values, self.target)
            sign = op.Sub(op.Add(t, t), _one(op, s))
            return reduced(op, _huber(op, op.Mul(sign, s)), self.reduction)
        check_rank(self, s, 2, "scores of shape (rows, classes)")
        own = label_elements(op, self, s, values, self.target)
        rest = op.ReduceMean(_huber(op, op.Neg(s)), [1], keepdims=0)
        count = op.cast_like(op.Gather(op.Shape(s), [1]), s)
        change = op.Sub(_huber(op, own), _huber(op, op.Neg(own)))
        return reduced(op, op.Add(rest, op.Div(change, count)), self.reduction)

    def allowed_labels(self, values: Values) -> tuple[int, int | None] | None:
        return class_range(values[self.output]) if self.classes else None


def _huber(op: GraphOps, z: ir.Value) -> ir.Value:
    """max(0, 1 - z)^2 - max(0, -1 - z)^2"""
    near = op.Relu(op.Sub(_one(op, z), z))
    far = op.Relu(op.Sub(op.Neg(_one(op, z)), z))
    found: ir.Value = op.Sub(op.Mul(near, near), op.Mul(far, far))
    return found


def _one(op: GraphOps, like: ir.Value) -> ir.Value:
    found: ir.Value = op.cast_like(op.constant(np.array(1, np.float32)), like)
    return found
