"""Losses that compare a student's value with a teacher's answer, which is fed.

x: the student's value; t: the teacher's, an input of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.graph_ops import GraphOps
from onward.losses.distance import Cosine
from onward.losses.loss import Loss, Values, check_loss, check_rank, read, reduced, target_like
from onward.losses.regression import MSE
from onward.message_text import suggest_names
from onward.settings import above


@dataclass(frozen=True, kw_only=True)
class SoftenedKL:
    """T^2 KL(softmax(t / T) || softmax(x / T)), the mean over rows (Hinton et al. 2015).

    Attributes:
        output: the student's output with the logits; None: the first one
        target: the input with the teacher's logits
        temperature: T: higher ones compare unlikely classes as well
    """

    output: str | None = None
    target: str = "target"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_loss(self, temperature=above(0.0))

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        x = read(op, self, values, self.output)
        check_rank(self, x, 1, "logits along the last axis")
        t = target_like(op, self, x, values, self.target)
        if self.temperature != 1:
            x, t = op.Mul(x, 1 / self.temperature), op.Mul(t, 1 / self.temperature)
        log_t = op.LogSoftmax(t, axis=-1)
        each = op.Mul(op.Exp(log_t), op.Sub(log_t, op.LogSoftmax(x, axis=-1)))
        rows = op.ReduceSum(each, [-1], keepdims=0)
        mean: ir.Value = op.Mul(reduced(op, rows, "mean"), self.temperature**2)
        return mean


def make_teacher_loss(kind: str, output: str, target: str, temperature: float = 1.0) -> Loss:
    """The loss of that name between an output and the input with the teacher's answer."""
    if kind == "mse":
        return MSE(output=output, target=target)
    if kind == "cosine":
        return Cosine(output=output, target=target)
    if kind == "kl":
        return SoftenedKL(output=output, target=target, temperature=temperature)
    raise OptionError(f"there is no loss {kind!r}\n{suggest_names(kind, ('mse', 'cosine', 'kl'))}")
