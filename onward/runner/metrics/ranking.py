"""ROC AUC, and the ROC curve: how well scores order rows of a class before the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from onward.errors import MetricError
from onward.runner.metrics.class_scores import (
    DEFAULT_SCORES,
    ScoreRows,
    ScoreSettings,
    check_same_kind,
)
from onward.runner.metrics.log_loss import log_softmax
from onward.runner.metrics.metric import Array, no_rows
from onward.settings import check_fields, explain_keywords, integer


@explain_keywords
@dataclass(kw_only=True)
class AUC:
    """The probability that a row of a class scores higher than one that is not; ties count half.

    Binary models, or two classes: of class 1. More classes, or several labels: the mean over the
    classes (each against the rest) or labels; those without rows on both sides are left out.
    NaN if none is left. It is exact: all scores are kept until the result.

    Attributes:
        most_scores: how many numbers are kept at most; 16 to 24 bytes each
        scores: how outputs and targets are read

    >>> auc = AUC()
    >>> auc.update([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    >>> auc.result()
    0.75
    """

    most_scores: int = 20_000_000
    scores: ScoreSettings = DEFAULT_SCORES
    name: ClassVar[str] = "auc"
    higher_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, most_scores=integer(1))
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        self._kind: tuple[str, int] | None = None
        self._kept: list[tuple[Array, ...]] = []  # scores, labels, weights, columns
        self._count = 0

    def update(
        self, outputs: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """Add a batch."""
        rows = self.scores.read(self.name, outputs, targets, weights)
        check_same_kind(self.name, self._kind, rows)
        ranks = _comparable_scores(rows, self.scores.probabilities)
        if np.isnan(ranks).any():
            raise MetricError(
                "auc: a row has several infinite outputs\nonly some scores of a row may be -inf"
            )
        self._count += ranks.size
        if self._count > self.most_scores:
            raise MetricError(
                f"auc keeps every score, and there are more than {self.most_scores:,}\n"
                "evaluate fewer rows, give most_scores, or take another metric"
            )
        self._kind = rows.kind
        self._kept.append((ranks, rows.labels, rows.weights, rows.columns))

    def merge(self, other: AUC) -> None:
        """Add the rows of another metric."""
        self._kind = other._kind if self._kind is None else self._kind
        self._kept += other._kept
        self._count += other._count

    def result(self) -> float:
        """The AUC of all rows."""
        if self._kind is None or not self._count:
            raise no_rows(self.name)
        task, classes = self._kind
        scores, labels, weights, columns = (np.concatenate(each) for each in zip(*self._kept))
        if scores.ndim == 2:
            areas = [area_under_curve(scores[:, k], labels == k, weights) for k in range(classes)]
        elif task == "multilabel":
            parts = [columns == k for k in range(classes)]
            areas = [area_under_curve(scores[p], labels[p], weights[p]) for p in parts]
        else:
            areas = [area_under_curve(scores, labels, weights)]
        defined = [area for area in areas if not math.isnan(area)]
        return math.fsum(defined) / len(defined) if defined else math.nan

    def curve(self) -> tuple[Array, Array]:
        """False and true positive rates at each threshold, for a figure; two classes only."""
        if self._kind is None or not self._count:
            raise no_rows(self.name)
        task, classes = self._kind
        if task == "multilabel" or classes != 2:
            raise MetricError(
                f"auc: a ROC curve is of 2 classes, the outputs are {task} with {classes}\n"
                "draw a curve of one class: roc_points(scores[:, k], labels == k)"
            )
        scores, labels, weights, _ = (np.concatenate(each) for each in zip(*self._kept))
        return roc_points(scores, labels, weights)


def area_under_curve(scores: Array, labels: Array, weights: Array) -> float:
    """(pairs in order + pairs tied / 2) / pairs of a positive and a negative row; NaN of none."""
    positive, negative = _group_by_score(scores, labels, weights)
    pairs = positive.sum() * negative.sum()
    if not pairs:
        return math.nan
    below = np.cumsum(negative) - negative
    return float((positive * (below + negative / 2)).sum() / pairs)


def roc_points(scores: Array, labels: Array, weights: Array | None = None) -> tuple[Array, Array]:
    """False and true positive rates, from the highest threshold to the lowest; NaN of none.

    >>> fpr, tpr = roc_points(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    >>> fpr.tolist(), tpr.tolist()
    ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    weights = np.ones(len(scores)) if weights is None else weights
    rates = []
    for counts in reversed(_group_by_score(scores, labels, weights)):
        above = np.concatenate([[0.0], np.cumsum(counts[::-1])])
        rates.append(above / above[-1] if above[-1] else np.full(len(above), np.nan))
    return rates[0], rates[1]


def _group_by_score(scores: Array, labels: Array, weights: Array) -> tuple[Array, Array]:
    """The weight of positive and of negative rows at each distinct score, in ascending order."""
    # equal scores too are in a fixed order, so that sums of weights do not depend on the batches
    order = np.lexsort((weights, labels, scores))
    scores, labels, weights = scores[order], labels[order] == 1, weights[order]
    starts = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
    positive = np.add.reduceat(np.where(labels, weights, 0.0), starts)
    return positive, np.add.reduceat(np.where(labels, 0.0, weights), starts)


def _comparable_scores(rows: ScoreRows, probabilities: bool) -> Array:
    """Scores that order rows as the probabilities of a class do: (rows,), or (rows, classes)."""
    scores = np.ascontiguousarray(rows.scores, np.float64)
    if scores.ndim == 1 or not len(scores):
        return scores
    if rows.classes == 2:
        with np.errstate(invalid="ignore"):
            return scores[:, 1] if probabilities else scores[:, 1] - scores[:, 0]
    return scores if probabilities else log_softmax(scores)
