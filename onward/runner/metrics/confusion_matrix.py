"""The confusion matrix: how often each class was taken for each other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from onward.errors import MetricError
from onward.message_text import list_names
from onward.runner.metrics.class_scores import DEFAULT_SCORES, ScoreSettings, check_same_kind
from onward.runner.metrics.exact_sums import ExactSums
from onward.runner.metrics.metric import Array, no_rows
from onward.settings import explain_keywords

_MOST_CLASSES = 2000  # a matrix of 4 million cells


@explain_keywords
@dataclass(kw_only=True)
class ConfusionMatrix:
    """Rows counted by label (down) and answer (across).

    It is updated as metrics are, but its result is an array.

    Attributes:
        classes: the names of the classes; None: their numbers
        scores: how outputs and targets are read

    >>> matrix = ConfusionMatrix(classes=["cat", "dog"])
    >>> matrix.update([[0.1, 2.0], [3.0, 0.2], [0.0, 1.0]], [1, 1, 1])
    >>> matrix.result().tolist()
    [[0.0, 0.0], [1.0, 2.0]]
    """

    classes: Sequence[str] | None = None
    scores: ScoreSettings = DEFAULT_SCORES

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        self._kind: tuple[str, int] | None = None
        self._cells = ExactSums()

    def update(
        self, outputs: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """Add a batch."""
        rows = self.scores.read("confusion matrix", outputs, targets, weights)
        check_same_kind("confusion matrix", self._kind, rows)
        if self._kind is None:
            self._check_classes(*rows.kind)
            self._cells = ExactSums(rows.classes**2)
            self._kind = rows.kind
        answers = self.scores.decide(rows)
        self._cells.add(rows.weights, rows.labels * rows.classes + answers)

    def merge(self, other: ConfusionMatrix) -> None:
        """Add the rows of another matrix of the same classes."""
        if self._kind is None:
            self._kind, self._cells = other._kind, ExactSums(other._cells.cells)
        self._cells.merge(other._cells)

    def result(self) -> Array:
        """The weight of the rows of each label and answer: (classes, classes), float64."""
        if self._kind is None:
            raise no_rows("confusion matrix")
        return self._cells.floats().reshape(self._kind[1], self._kind[1])

    def names(self) -> list[str]:
        """The names of the classes."""
        if self.classes is not None:
            return list(self.classes)
        return [str(k) for k in range(self._kind[1])] if self._kind is not None else []

    def _check_classes(self, task: str, count: int) -> None:
        if task == "multilabel" or count > _MOST_CLASSES:
            raise MetricError(
                f"a confusion matrix is of one label per row and {_MOST_CLASSES} classes at most, "
                f"the outputs are {task} with {count}\ntake f1 instead"
            )
        if self.classes is not None and len(self.classes) != count:
            raise MetricError(
                f"the confusion matrix has {len(self.classes)} names, the outputs {count} classes\n"
                f"give one name per class; given: {list_names(self.classes)}"
            )


def row_shares(counts: ArrayLike) -> Array:
    """Counts of each row of a confusion matrix, of the row's sum; 0 of an empty row.

    >>> row_shares([[1, 3], [0, 0]]).tolist()
    [[0.25, 0.75], [0.0, 0.0]]
    """
    matrix = np.asarray(counts, np.float64)
    sums = matrix.sum(axis=1, keepdims=True)
    return matrix / np.where(sums == 0, 1.0, sums)
