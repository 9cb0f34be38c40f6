"""Losses that compare a student's value with a teacher's answer, which is fed.

x: the student's value; t: the teacher's, an input of the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.graph_ops import GraphOps
from onward.losses.distance import Cosine
from onward.losses.loss import (
    Loss,
    Values,
    check_loss,
    check_rank,
    read,
    reduced,
    sizes_of,
    target_like,
)
from onward.losses.regression import MSE
from onward.message_text import suggest_names
from onward.settings import above, check_fields, integer, true_or_false

_TINY = 1e-7  # added to variances: equal logits have a gradient


@dataclass(frozen=True, kw_only=True)
class SoftenedKL:
    """T^2 KL(softmax(t / T) || softmax(x / T)), the mean over rows (Hinton et al. 2015).

    Attributes:
        output: the student's output with the logits; None: the first one
        target: the input with the teacher's logits
        temperature: T: higher ones compare unlikely classes as well
        axis: where the classes are
        standardized: compare logits minus their mean over their deviation, row by row: a student
            need not reach the scale of its teacher's (Sun et al. 2024)
    """

    output: str | None = None
    target: str = "target"
    temperature: float = 1.0
    axis: int = -1
    standardized: bool = False

    def __post_init__(self) -> None:
        check_loss(self, temperature=above(0.0), axis=integer(), standardized=true_or_false)

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        x = read(op, self, values, self.output)
        check_rank(self, x, 1, "logits along an axis")
        t = target_like(op, self, x, values, self.target)
        if self.standardized:
            x, t = self._standardized(op, x), self._standardized(op, t)
        if self.temperature != 1:
            x, t = op.Mul(x, 1 / self.temperature), op.Mul(t, 1 / self.temperature)
        log_t = op.LogSoftmax(t, axis=self.axis)
        each = op.Mul(op.Exp(log_t), op.Sub(log_t, op.LogSoftmax(x, axis=self.axis)))
        rows = op.ReduceSum(each, [self.axis], keepdims=0)
        mean: ir.Value = op.Mul(reduced(op, rows, "mean"), self.temperature**2)
        return mean

    def _standardized(self, op: GraphOps, x: ir.Value) -> ir.Value:
        """(x - mean) / deviation, along the classes"""
        d = op.Sub(x, op.ReduceMean(x, [self.axis], keepdims=1))
        variance = op.ReduceMean(op.Mul(d, d), [self.axis], keepdims=1)
        found: ir.Value = op.Div(d, op.Sqrt(op.Add(variance, _TINY)))
        return found


@dataclass(frozen=True, kw_only=True)
class Relations:
    """KL(softmax(t t' / sqrt(d)) || softmax(x x' / sqrt(d))), the mean over rows (MiniLM 2020).

    x and t are queries, keys, values or hidden states: (batch, time, width), whose widths may
    differ, or (batch, heads, time, size). How tokens relate to each other is compared, so that no
    projection is needed.

    Attributes:
        output: the student's value
        target: the input with the teacher's value
        sizes: the shape of the teacher's value; its batch and time may be names
        heads: the parts into which widths are divided; ignored for values with heads
    """

    output: str
    target: str
    sizes: tuple[int | str, ...]
    heads: int = 1

    def __post_init__(self) -> None:
        check_fields(self, heads=integer(1))

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        x = read(op, self, values, self.output)
        t = op.input(self.target, x.dtype, self.sizes)
        log_x, log_t = self._relations(op, x), self._relations(op, t)
        each = op.Mul(op.Exp(log_t), op.Sub(log_t, log_x))
        return reduced(op, op.ReduceSum(each, [-1], keepdims=0), "mean")

    def _relations(self, op: GraphOps, x: ir.Value) -> ir.Value:
        check_rank(self, x, 3, "(batch, time, width) or (batch, heads, time, size)", most=4)
        width = sizes_of(x)[-1]
        if len(sizes_of(x)) == 3:
            if isinstance(width, int) and width % self.heads:
                raise OptionError(
                    f"{self.heads} heads do not divide the width {width} of {x.name!r}\n"
                    "give Hidden(heads=...) that divides both widths"
                )
            parts = op.Reshape(x, np.array([0, 0, self.heads, -1]))
            x = op.Transpose(parts, perm=[0, 2, 1, 3])
            width = width // self.heads if isinstance(width, int) else None
        size = width if isinstance(width, int) else op.size(x, -1)
        scale = op.Sqrt(op.number(size, x)) if not isinstance(size, int) else math.sqrt(size)
        scores = op.Div(op.MatMul(x, op.Transpose(x, perm=[0, 1, 3, 2])), scale)
        found: ir.Value = op.LogSoftmax(scores, axis=-1)
        return found


def make_teacher_loss(
    kind: str,
    output: str,
    target: str,
    temperature: float = 1.0,
    axis: int = -1,
    standardized: bool = False,
) -> Loss:
    """The loss of that name between an output and the input with the teacher's answer."""
    if kind == "mse":
        return MSE(output=output, target=target)
    if kind == "cosine":
        return Cosine(output=output, target=target)
    if kind == "kl":
        return SoftenedKL(
            output=output,
            target=target,
            temperature=temperature,
            axis=axis,
            standardized=standardized,
        )
    raise OptionError(f"there is no loss {kind!r}\n{suggest_names(kind, ('mse', 'cosine', 'kl'))}")
