"""Read the scores of a classifier in any of their layouts, as rows with one label each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from onward.errors import MetricError
from onward.runner.metrics.metric import (
    Array,
    Shape,
    read_numbers,
    read_weights,
    refuse_nan,
    shown,
    without_ones,
)
from onward.settings import (
    check_fields,
    choice,
    explain_keywords,
    finite_number,
    integer,
    optional,
    setting_error,
    true_or_false,
)

_ROUNDING = 1e-3  # how far a 16-bit probability may be outside of 0 to 1


@dataclass(frozen=True)
class ScoreRows:
    """Labels that are not ignored, with their scores.

    Attributes:
        task: "multiclass", "binary" or "multilabel"
        scores: (rows, classes) if multiclass, else (rows,)
        labels: (rows,), the class; 0 or 1 if not multiclass
        weights: (rows,), above 0
        columns: (rows,), which label of a multilabel model; zeros otherwise
        classes: number of classes; of labels if multilabel
    """

    task: str
    scores: Array
    labels: Array
    weights: Array
    columns: Array
    classes: int

    @property
    def kind(self) -> tuple[str, int]:
        """What all batches of a metric must have in common."""
        return self.task, self.classes


@explain_keywords
@dataclass(frozen=True, kw_only=True)
class ScoreSettings:
    """How a metric reads the scores and labels of a classifier.

    Attributes:
        task: "multiclass", "binary", "multilabel", or "auto": read from the shapes. Outputs in the
            shape of the targets are multilabel if they are (rows, labels), else binary
        axis: where the classes are; None: the axis that the targets do not have
        ignore_index: targets of this number do not count; None: all count
        probabilities: scores are probabilities, not logits
        threshold: the probability above which a binary answer is 1

    >>> rows = ScoreSettings().read("accuracy", [[0.1, 2.0, 0.3]], [1])
    >>> rows.task, rows.classes
    ('multiclass', 3)
    """

    task: str = "auto"
    axis: int | None = None
    ignore_index: int | None = None
    probabilities: bool = False
    threshold: float = 0.5

    def __post_init__(self) -> None:
        check_fields(
            self,
            task=choice("auto", "multiclass", "binary", "multilabel"),
            axis=optional(integer()),
            ignore_index=optional(integer()),
            probabilities=true_or_false,
            threshold=_between_0_and_1,
        )

    def read(
        self,
        metric: str,
        outputs: ArrayLike,
        targets: ArrayLike,
        weights: ArrayLike | None = None,
    ) -> ScoreRows:
        """The labels of a batch that are not ignored; an error names the metric."""
        scores = read_numbers(metric, "outputs", outputs)
        labels = read_numbers(metric, "targets", targets)
        shape = labels.shape
        task = self._find_task(metric, scores.shape, shape)
        if task == "multiclass":
            axis = self._find_class_axis(metric, scores.shape, shape)
            classes = scores.shape[axis]
            scores = np.moveaxis(scores, axis, -1).reshape(-1, classes)
        else:
            scores = scores.reshape(-1)
            classes = self._count_labels(metric, shape) if task == "multilabel" else 2
        columns = np.zeros(shape, np.int64)
        if task == "multilabel":
            columns = np.indices(shape)[self._label_axis(shape)]
        each = read_weights(metric, weights, shape)
        used = self._find_used(labels, each)
        flat = _read_labels(metric, labels.reshape(-1)[used])
        _check_range(metric, flat, used, shape, classes if task == "multiclass" else 2)
        scores = scores if used.size == len(scores) else scores[used]
        refuse_nan(metric, "outputs", scores, used, shape)
        if self.probabilities:
            _check_probabilities(metric, scores)
        return ScoreRows(
            task, scores, flat, each.reshape(-1)[used], columns.reshape(-1)[used], classes
        )

    def decide(self, rows: ScoreRows) -> Array:
        """The class of each row; 0 or 1 if not multiclass. Of equal scores, the first class."""
        if rows.task == "multiclass":
            best: Array = np.argmax(rows.scores, axis=1)
            return best
        least = self.threshold
        if not self.probabilities:
            least = math.log(self.threshold / (1 - self.threshold))
        return (rows.scores.astype(np.float64) > least).astype(np.int64)

    def _find_task(self, metric: str, scores: Shape, labels: Shape) -> str:
        same = without_ones(scores) == without_ones(labels)
        if self.task == "auto":
            if not same or self.axis is not None:
                return "multiclass"
            return "multilabel" if len(scores) == 2 and scores[1] > 1 else "binary"
        if self.task != "multiclass" and not same:
            raise MetricError(
                f"{metric}: outputs have shape {shown(scores)}, targets {shown(labels)}\n"
                f"a {self.task} model needs a target, 0 or 1, for each output"
            )
        return self.task

    def _find_class_axis(self, metric: str, scores: Shape, labels: Shape) -> int:
        count = len(scores)
        asked = sorted({1, count - 1}) if self.axis is None else [self.axis % max(count, 1)]
        fitting = [i for i in asked if 0 < i < count and scores[:i] + scores[i + 1 :] == labels]
        if len(fitting) == 1:
            return fitting[0]
        shapes = f"{metric}: outputs have shape {shown(scores)}, targets {shown(labels)}"
        if fitting:
            raise MetricError(
                f"{shapes}: the classes may be on axis 1 or {count - 1}\n"
                f"give axis=1 or axis={count - 1}"
            )
        axis = "one axis" if self.axis is None else f"axis {self.axis}"
        raise MetricError(
            f"{shapes}\ntargets must have the shape of the outputs without {axis}, the classes"
        )

    def _label_axis(self, shape: Shape) -> int:
        return 1 if self.axis is None else self.axis % len(shape)

    def _count_labels(self, metric: str, shape: Shape) -> int:
        if len(shape) < 2:
            raise MetricError(
                f"{metric}: targets of a multilabel model are (rows, labels), not {shown(shape)}\n"
                "give task='binary' for one label"
            )
        return shape[self._label_axis(shape)]

    def _find_used(self, labels: Array, weights: Array) -> Array:
        used = weights > 0
        if self.ignore_index is not None:
            used &= labels != self.ignore_index
        return np.flatnonzero(used)


def check_same_kind(metric: str, before: tuple[str, int] | None, rows: ScoreRows) -> None:
    """Refuse a batch whose task or number of classes differs from that of earlier batches."""
    if before is not None and before != rows.kind:
        raise MetricError(
            f"{metric}: this batch is {rows.task} with {rows.classes} classes, earlier ones were "
            f"{before[0]} with {before[1]}\ncall reset() before another model"
        )


def _between_0_and_1(name: str, value: Any) -> float:
    given = finite_number(value)
    if given is None or not 0 < given < 1:
        raise setting_error(name, "a number between 0 and 1", value)
    return given


def _read_labels(metric: str, labels: Array) -> Array:
    if labels.dtype.kind in "iub":
        return labels.astype(np.int64)
    wide = labels.astype(np.float64)
    if not np.array_equal(wide, np.round(wide)) or not np.isfinite(wide).all():
        wrong = wide[~((wide == np.round(wide)) & np.isfinite(wide))][0]
        raise MetricError(
            f"{metric}: targets must be class indices, not {wrong:g}\n"
            "give whole numbers; for soft labels, the class of the highest probability"
        )
    return wide.astype(np.int64)


def _check_range(metric: str, labels: Array, used: Array, shape: Shape, classes: int) -> None:
    wrong = (labels < 0) | (labels >= classes)
    if not wrong.any():
        return
    i = int(np.argmax(wrong))
    place = ", ".join(str(axis) for axis in np.unravel_index(used[i], shape))
    raise MetricError(
        f"{metric}: label {labels[i]} at row {place} is not one of the {classes} classes "
        f"(0 to {classes - 1})\n"
        f"give ignore_index={labels[i]} if such rows must not count, or check the labels"
    )


def _check_probabilities(metric: str, scores: Array) -> None:
    if scores.size and not (scores.min() >= -_ROUNDING and scores.max() <= 1 + _ROUNDING):
        raise MetricError(
            f"{metric}: probabilities must be from 0 to 1, outputs are from "
            f"{float(scores.min()):g} to {float(scores.max()):g}\n"
            "leave probabilities=True out if these are logits"
        )


DEFAULT_SCORES = ScoreSettings()
