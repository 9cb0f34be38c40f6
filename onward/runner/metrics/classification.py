"""Metrics of the classes that a model decides for: accuracy, top-k, precision, recall, F1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from onward.errors import MetricError
from onward.runner.metrics.class_scores import DEFAULT_SCORES, ScoreSettings, check_same_kind
from onward.runner.metrics.exact_sums import ExactSums
from onward.runner.metrics.metric import Array, no_rows
from onward.settings import check_fields, choice, explain_keywords, integer

AVERAGES = ("auto", "binary", "macro", "micro", "weighted")

# of one class: right answers, answers, and labels, to numerator and denominator
_FORMULAS: dict[str, Callable[[Fraction, Fraction, Fraction], tuple[Fraction, Fraction]]] = {
    "precision": lambda right, answers, labels: (right, answers),
    "recall": lambda right, answers, labels: (right, labels),
    "f1": lambda right, answers, labels: (2 * right, answers + labels),
}


@explain_keywords
@dataclass(kw_only=True)
class Accuracy:
    """The share of right answers; of a multilabel model, the share of right labels.

    Attributes:
        scores: how outputs and targets are read
        name: the name for tables and messages

    >>> accuracy = Accuracy()
    >>> accuracy.update([[0.1, 2.0], [3.0, 0.2]], [1, 1])
    >>> accuracy.result()
    0.5
    """

    scores: ScoreSettings = DEFAULT_SCORES
    name: str = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        self._share = _Share()

    def update(
        self, outputs: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """Add a batch."""
        rows = self.scores.read(self.name, outputs, targets, weights)
        self._share.add(self.scores.decide(rows) == rows.labels, rows.weights)

    def merge(self, other: Accuracy) -> None:
        """Add the rows of another metric."""
        self._share.merge(other._share)

    def result(self) -> float:
        """The accuracy of all rows."""
        return self._share.divide(self.name)


@explain_keywords
@dataclass(kw_only=True)
class TopKAccuracy:
    """The share of rows whose label is among the k classes of the highest scores.

    Of classes with equal scores the first counts as the higher one: top-1 is the accuracy.

    Attributes:
        k: how many classes may be named
        scores: how outputs and targets are read

    >>> top2 = TopKAccuracy(k=2)
    >>> top2.update([[0.1, 2.0, 1.0], [3.0, 0.1, 0.2]], [2, 1])
    >>> top2.name, top2.result()
    ('top2', 0.5)
    """

    k: int = 5
    scores: ScoreSettings = DEFAULT_SCORES
    higher_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, k=integer(1))
        self.name = f"top{self.k}"
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        self._share = _Share()

    def update(
        self, outputs: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """Add a batch."""
        rows = self.scores.read(self.name, outputs, targets, weights)
        if rows.task != "multiclass" or rows.classes <= self.k:
            raise MetricError(
                f"{self.name} needs more than {self.k} classes, the outputs are {rows.task} with "
                f"{rows.classes}\ngive a smaller k, or take the accuracy"
            )
        label = rows.labels[:, None]
        own = np.take_along_axis(rows.scores, label, axis=1)
        ahead = (rows.scores > own) | (
            (rows.scores == own) & (np.arange(rows.classes) < label)
        )  # (rows, classes)
        self._share.add(ahead.sum(axis=1) < self.k, rows.weights)

    def merge(self, other: TopKAccuracy) -> None:
        """Add the rows of another metric."""
        self._share.merge(other._share)

    def result(self) -> float:
        """The top-k accuracy of all rows."""
        return self._share.divide(self.name)


@explain_keywords
@dataclass(kw_only=True)
class ClassAverage:
    """Precision, recall or F1 of each class, averaged.

    precision = right / answers, recall = right / labels, F1 = 2 right / (answers + labels),
    0 where the denominator is 0. As in scikit-learn, classes that are neither a label nor an answer
    are left out of averages; the labels of a multilabel model never are.

    Attributes:
        measure: "precision", "recall" or "f1"
        average: "macro": the mean over classes; "weighted": by the classes' labels; "micro": of
            all classes counted together; "binary": class 1 of two; "auto": "binary" for binary
            outputs, else "macro"
        scores: how outputs and targets are read

    >>> f1 = ClassAverage(measure="f1", average="micro")
    >>> f1.update([[0.1, 2.0], [3.0, 0.2]], [1, 1])
    >>> f1.name, f1.result()
    ('f1_micro', 0.5)
    """

    measure: str = "f1"
    average: str = "auto"
    scores: ScoreSettings = DEFAULT_SCORES
    higher_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, measure=choice(*_FORMULAS), average=choice(*AVERAGES))
        self.name = self.measure + (f"_{self.average}" if self.average != "auto" else "")
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        self._kind: tuple[str, int] | None = None
        self._right, self._answers, self._labels = ExactSums(), ExactSums(), ExactSums()
        self._rows = 0

    def update(
        self, outputs: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """Add a batch."""
        rows = self.scores.read(self.name, outputs, targets, weights)
        check_same_kind(self.name, self._kind, rows)
        if self._kind is None:
            self._check_average(*rows.kind)
            self._right, self._answers, self._labels = (ExactSums(rows.classes) for _ in range(3))
            self._kind = rows.kind
        answers, labels = self.scores.decide(rows), rows.labels
        right, answered, labelled = answers == labels, slice(None), slice(None)
        if rows.task == "multilabel":  # only label 1 is counted, in its column
            answered, labelled = answers == 1, labels == 1
            right, answers, labels = answered & labelled, rows.columns, rows.columns
        self._right.add(rows.weights[right], labels[right])
        self._answers.add(rows.weights[answered], answers[answered])
        self._labels.add(rows.weights[labelled], labels[labelled])
        self._rows += len(rows.labels)

    def merge(self, other: ClassAverage) -> None:
        """Add the rows of another metric."""
        if self._kind is None:
            cells = other._right.cells
            self._right, self._answers, self._labels = (ExactSums(cells) for _ in range(3))
            self._kind = other._kind
        self._right.merge(other._right)
        self._answers.merge(other._answers)
        self._labels.merge(other._labels)
        self._rows += other._rows

    def result(self) -> float:
        """The average over the classes of all rows."""
        if self._kind is None or not self._rows:
            raise no_rows(self.name)
        task, _ = self._kind
        counts = list(zip(self._right.totals(), self._answers.totals(), self._labels.totals()))
        match self.average:
            case "micro":
                right, answers, labels = (sum(each, Fraction(0)) for each in zip(*counts))
                return float(self._divide(right, answers, labels))
            case "binary":
                return float(self._divide(*counts[1]))
            case "auto" if task == "binary":
                return float(self._divide(*counts[1]))
        used = [each for each in counts if task == "multilabel" or each[1] + each[2] > 0]
        shares = [each[2] if self.average == "weighted" else Fraction(1) for each in used]
        if not sum(shares):  # weighted, and no label of a multilabel model is 1
            return 0.0
        numbers = [self._divide(*each) for each in used]
        total = sum((share * number for share, number in zip(shares, numbers)), Fraction(0))
        return float(total / sum(shares))

    def _divide(self, right: Fraction, answers: Fraction, labels: Fraction) -> Fraction:
        numerator, denominator = _FORMULAS[self.measure](right, answers, labels)
        return numerator / denominator if denominator else Fraction(0)

    def _check_average(self, task: str, classes: int) -> None:
        if self.average == "binary" and (task == "multilabel" or classes != 2):
            raise MetricError(
                f"{self.name}: average 'binary' needs 2 classes, the outputs are {task} with "
                f"{classes}\ngive average='macro', 'micro' or 'weighted'"
            )


class _Share:
    """The weight of right rows, of that of all rows."""

    def __init__(self) -> None:
        self.right, self.all = ExactSums(), ExactSums()

    def add(self, right: Array, weights: Array) -> None:
        self.right.add(weights[right])
        self.all.add(weights)

    def merge(self, other: _Share) -> None:
        self.right.merge(other.right)
        self.all.merge(other.all)

    def divide(self, metric: str) -> float:
        total = self.all.total()
        if not total:
            raise no_rows(metric)
        return float(self.right.total() / total)
