"""Losses for classification: cross entropy, binary cross entropy, Kullback-Leibler divergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.graph_ops import GraphOps, numpy_type
from onward.losses.loss import (
    REDUCTIONS,
    Values,
    check_loss,
    check_rank,
    find,
    integers,
    nested_numbers,
    read,
    reduced,
    shown,
    sizes_of,
    target,
    target_like,
)
from onward.settings import integer, number, optional, true_or_false


@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """-log softmax(x)[label], of scores of shape (batch, classes, ...) and integer labels.

    If every label is ignored, the mean is over nothing: the loss is NaN and its gradients are 0.

    Attributes:
        output: the output with the scores; None: the first one
        target: the input that holds the labels
        weight: one number per class; None: all count the same
        ignore_index: labels of this number are ignored; None: every label is a class
        label_smoothing: this share of each label is spread over all classes
        soft_labels: the target holds probabilities, in the shape of the scores
        axis: where the classes are; -1 for text models: (batch, time, classes)
        reduction: "mean" (over the weights of the labels), "sum" or "none"

    >>> CrossEntropy(label_smoothing=0.1, weight=np.ones(2)).weight
    (1.0, 1.0)
    """

    output: str | None = None
    target: str = "labels"
    weight: Any = None
    ignore_index: int | None = None
    label_smoothing: float = 0.0
    soft_labels: bool = False
    axis: int = 1
    reduction: str = "mean"

    def __post_init__(self) -> None:
        check_loss(
            self,
            weight=optional(nested_numbers),
            ignore_index=optional(integer()),
            label_smoothing=number(high=1.0),
            soft_labels=true_or_false,
            axis=integer(),
        )
        if self.soft_labels and self.ignore_index is not None:
            raise OptionError(
                "CrossEntropy cannot ignore labels that are probabilities\n"
                "give those rows a target of zeros instead of ignore_index"
            )

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        x = read(op, self, values, self.output)
        check_rank(self, x, 2, "scores of shape (batch, classes, ...)")
        axis = self._axis(x)
        weight = self._weight(op, x, axis)
        if self._is_soft(find(op, values, self.target)):
            t = target_like(op, self, x, values, self.target)
            return self._soft(op, x, t, weight, axis)
        sizes = sizes_of(x)
        labels = target(op, self, values, self.target, "int64", sizes[:axis] + sizes[axis + 1 :])
        labels = integers(op, self, labels)
        if axis == 1:
            return self._hard(op, x, labels, weight)
        each = self._hard(op, _rows(op, x, axis), op.Reshape(labels, [-1]), weight)
        return op.reshape_as(each, labels) if self.reduction == "none" else each

    def allowed_labels(self, values: Values) -> tuple[int, int | None] | None:
        """The least label and one above the greatest (None: not known); None for soft labels."""
        if self._is_soft(values.get(self.target)):
            return None
        x = values[self.output] if self.output is not None else next(iter(values.values()))
        classes = sizes_of(x)[self._axis(x)]
        return 0, classes if isinstance(classes, int) else None

    def _is_soft(self, known: ir.Value | None) -> bool:
        """Whether labels are probabilities; by their type if the model has them."""
        if known is None or known.dtype is None:
            return self.soft_labels
        soft = known.dtype.is_floating_point()
        if self.soft_labels and not soft:
            raise OptionError(
                f"CrossEntropy has soft_labels, but {self.target!r} is {known.dtype.name}\n"
                "leave soft_labels out, or name a target of probabilities"
            )
        if soft and self.ignore_index is not None:
            raise OptionError(
                f"CrossEntropy cannot ignore labels that are probabilities, as {self.target!r} is"
            )
        return soft

    def _axis(self, x: ir.Value) -> int:
        count = len(sizes_of(x))
        if not -count <= self.axis < count:
            raise OptionError(
                f"CrossEntropy.axis is {self.axis}, but {x.name!r} has shape {shown(x)}"
            )
        return self.axis % count

    def _weight(self, op: GraphOps, x: ir.Value, axis: int) -> ir.Value | None:
        if self.weight is None:
            return None
        array, classes = np.asarray(self.weight, numpy_type(x)), sizes_of(x)[axis]
        if array.ndim != 1 or (isinstance(classes, int) and len(array) != classes):
            raise OptionError(
                f"CrossEntropy.weight must be one number per class: shape [{classes}], "
                f"not {list(array.shape)}"
            )
        return op.constant(array)

    def _hard(
        self, op: GraphOps, x: ir.Value, labels: ir.Value, weight: ir.Value | None
    ) -> ir.Value:
        """One operator; smoothing adds -sum of log softmax, weighted, over the classes.

        (1 - s) nll + s / classes smooth, each over the same sum of weights for a mean
        """
        settings = {"reduction": self.reduction, "ignore_index": self.ignore_index}
        if self.label_smoothing == 0:
            return op.SoftmaxCrossEntropyLoss(x, labels, weight, **settings)
        nll, log_prob = op.SoftmaxCrossEntropyLoss(x, labels, weight, outputs=2, **settings)
        if weight is not None:
            log_prob = op.Mul(log_prob, _along(op, weight, x, 1))
        smooth = op.Neg(op.ReduceSum(log_prob, [1], keepdims=0))
        kept, labels = self._kept(op, labels)
        if kept is not None:
            smooth = op.Where(kept, smooth, 0.0)
        if self.reduction != "none":
            smooth = op.ReduceSum(smooth, keepdims=0)
        if self.reduction == "mean":
            smooth = op.Div(smooth, _total_weight(op, x, labels, kept, weight))
        share = op.number(op.size(x, 1), x)
        spread = op.Mul(op.Div(smooth, share), self.label_smoothing)
        return op.Add(op.Mul(nll, 1 - self.label_smoothing), spread)

    def _kept(self, op: GraphOps, labels: ir.Value) -> tuple[ir.Value | None, ir.Value]:
        """The mask of labels that count, and the labels with class 0 for the others."""
        if self.ignore_index is None:
            return None, labels
        kept = op.Not(op.Equal(labels, self.ignore_index))
        return kept, op.Where(kept, labels, 0)

    def _soft(
        self, op: GraphOps, x: ir.Value, t: ir.Value, weight: ir.Value | None, axis: int
    ) -> ir.Value:
        """-sum of t log softmax over the classes; a mean is over all but the classes"""
        if self.label_smoothing > 0:
            even = op.Div(op.number_like(self.label_smoothing, x), op.number(op.size(x, axis), x))
            t = op.Add(op.Mul(t, 1 - self.label_smoothing), even)
        if weight is not None:
            t = op.Mul(t, _along(op, weight, x, axis))
        each = op.ReduceSum(op.Mul(t, op.LogSoftmax(x, axis=axis)), [axis], keepdims=0)
        return op.Neg(reduced(op, each, self.reduction))


def _rows(op: GraphOps, x: ir.Value, axis: int) -> ir.Value:
    """x as (n, classes): the classes last, all other axes merged."""
    count = len(sizes_of(x))
    classes = op.size(x, axis)
    if axis != count - 1:
        order = [each for each in range(count) if each != axis]
        x = op.Transpose(x, perm=[*order, axis])
    return op.Reshape(x, op.shape(-1, classes))


def _along(op: GraphOps, weight: ir.Value, x: ir.Value, axis: int) -> ir.Value:
    """A number per class, shaped so that it multiplies x along its axis."""
    behind = len(sizes_of(x)) - 1 - axis
    return op.Reshape(weight, [-1, *[1] * behind]) if behind else weight


def _total_weight(
    op: GraphOps,
    x: ir.Value,
    labels: ir.Value,
    kept: ir.Value | None,
    weight: ir.Value | None,
) -> Any:
    """The divisor of the mean: the sum of the weights of the labels that count."""
    if weight is None and kept is None:
        return op.number(op.product(*op.sizes(labels)), x)
    if weight is None:
        assert kept is not None
        return op.ReduceSum(op.cast_like(kept, x), keepdims=0)
    each = op.Gather(weight, labels)
    return op.ReduceSum(each if kept is None else op.Where(kept, each, 0.0), keepdims=0)


@dataclass(frozen=True, kw_only=True)
class BCEWithLogits:
    """Binary cross entropy of scores: softplus(x) - t x, for any size of x; t between 0 and 1.

    weight multiplies each element's loss, pos_weight the part of the positive answers; both have
    shapes that broadcast to the output's. A mean is over the elements, whatever their weights.

    Attributes:
        output: the output with the scores; None: the first one
        target: the input that holds the targets, between 0 and 1
        weight: multiplies the loss of each element; None: 1
        pos_weight: multiplies the part of the positive answers; None: 1
        reduction: "mean" (over elements, whatever their weights), "sum" or "none"
    """

    output: str | None = None
    target: str = "target"
    weight: Any = None
    pos_weight: Any = None
    reduction: str = "mean"

    def __post_init__(self) -> None:
        check_loss(self, weight=optional(nested_numbers), pos_weight=optional(nested_numbers))

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        """-(p t log sigmoid(x) + (1 - t) log sigmoid(-x)), with -log sigmoid(x) = softplus(-x)"""
        x = read(op, self, values, self.output)
        t = target_like(op, self, x, values, self.target)
        if self.pos_weight is None:
            each = op.Sub(op.Softplus(x), op.Mul(x, t))
        else:
            p = self._constant(op, x, "pos_weight")
            positive = op.Mul(op.Mul(t, p), op.Softplus(op.Neg(x)))
            each = op.Add(positive, op.Mul(op.Sub(1.0, t), op.Softplus(x)))
        if self.weight is not None:
            each = op.Mul(each, self._constant(op, x, "weight"))
        return reduced(op, each, self.reduction)

    def _constant(self, op: GraphOps, x: ir.Value, field: str) -> ir.Value:
        array = np.asarray(getattr(self, field), numpy_type(x))
        sizes = sizes_of(x)
        pairs = zip(array.shape[::-1], sizes[::-1])
        clash = any(n != 1 and isinstance(size, int) and n != size for n, size in pairs)
        if clash or array.ndim > len(sizes):
            raise OptionError(
                f"BCEWithLogits.{field} has shape {list(array.shape)}, which does not "
                f"broadcast to {x.name!r} of shape {shown(x)}"
            )
        return op.constant(array)


@dataclass(frozen=True, kw_only=True)
class KL:
    """Kullback-Leibler divergence: t (log t - x), of log probabilities x and probabilities t.

    Reduction "batchmean", the sum over the size of the first axis, is the mathematical
    definition; "mean" is over all elements.

    Attributes:
        output: the output with the log probabilities; None: the first one
        target: the input that holds the probabilities
        log_target: the target holds log probabilities too
        reduction: "mean", "batchmean", "sum" or "none"
    """

    output: str | None = None
    target: str = "target"
    log_target: bool = False
    reduction: str = "mean"

    @property
    def is_mean_of_rows(self) -> bool:
        """Whether each row counts the same, whatever its size."""
        return self.reduction == "batchmean"

    def __post_init__(self) -> None:
        check_loss(self, (*REDUCTIONS, "batchmean"), log_target=true_or_false)

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        x = read(op, self, values, self.output)
        t = target_like(op, self, x, values, self.target)
        if self.log_target:
            each = op.Mul(op.Exp(t), op.Sub(t, x))
        else:  # 0 log 0 = 0
            log_t = op.Log(op.Where(op.Equal(t, 0.0), 1.0, t))
            each = op.Mul(t, op.Sub(log_t, x))
        if self.reduction != "batchmean":
            return reduced(op, each, self.reduction)
        check_rank(self, x, 1, "a batch for the reduction 'batchmean'")
        return op.Div(reduced(op, each, "sum"), op.number(op.size(x, 0), x))
