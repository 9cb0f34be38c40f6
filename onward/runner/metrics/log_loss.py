"""The log loss: how improbable a classifier finds the labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from onward.errors import MetricError
from onward.runner.metrics.class_scores import DEFAULT_SCORES, ScoreRows, ScoreSettings
from onward.runner.metrics.exact_sums import ExactSums
from onward.runner.metrics.metric import Array, no_rows
from onward.settings import explain_keywords

_NUMBERS = 1 << 22  # scores widened to float64 at once: 32 MiB


@explain_keywords
@dataclass(kw_only=True)
class LogLoss:
    """The mean of -log p(label): cross entropy, in natural logarithms.

    Of binary and multilabel models, the mean over all labels of -log p(0 or 1). A label of
    probability 0 makes it infinite.

    Attributes:
        scores: how outputs and targets are read
        name: the name for tables and messages

    >>> loss = LogLoss()
    >>> loss.update([[0.0, 0.0], [0.0, 0.0]], [0, 1])
    >>> round(loss.result(), 4)
    0.6931
    """

    scores: ScoreSettings = DEFAULT_SCORES
    name: str = "log_loss"
    higher_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        self._loss, self._weight = ExactSums(), ExactSums()
        self._infinite = False

    def update(
        self, outputs: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """Add a batch."""
        rows = self.scores.read(self.name, outputs, targets, weights)
        losses = label_losses(rows, self.scores.probabilities)
        if np.isnan(losses).any():
            raise MetricError(
                f"{self.name}: outputs of row {int(np.argmax(np.isnan(losses)))} are infinite\n"
                "only some scores of a row may be -inf, none inf"
            )
        finite = np.isfinite(losses)
        self._infinite |= not finite.all()
        self._loss.add_products(losses[finite], rows.weights[finite])
        self._weight.add(rows.weights)

    def merge(self, other: LogLoss) -> None:
        """Add the rows of another metric."""
        self._loss.merge(other._loss)
        self._weight.merge(other._weight)
        self._infinite |= other._infinite

    def result(self) -> float:
        """The log loss of all rows."""
        weight = self._weight.total()
        if not weight:
            raise no_rows(self.name)
        return float("inf") if self._infinite else float(self._loss.total() / weight)


def label_losses(rows: ScoreRows, probabilities: bool) -> Array:
    """-log p(label) of each row."""
    if rows.task != "multiclass":
        return _binary_losses(rows.scores.astype(np.float64), rows.labels, probabilities)
    losses = np.empty(len(rows.labels))
    for part, scores in _parts(rows.scores):
        log_p = scores if probabilities else log_softmax(scores)
        own = np.take_along_axis(log_p, rows.labels[part, None], axis=1)[:, 0]
        losses[part] = -_log(own) if probabilities else -own
    return losses


def log_softmax(x: Array) -> Array:
    """x - log sum exp x, of each row of float64."""
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, which callers refuse
        shifted = x - x.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))  # type: ignore[no-any-return]


def _binary_losses(x: Array, t: Array, probabilities: bool) -> Array:
    """-log p or -log(1 - p); of logits, softplus(-x) or softplus(x)"""
    if probabilities:
        return -_log(np.where(t == 1, x, 1 - x))
    return np.logaddexp(0.0, np.where(t == 1, -x, x))


def _log(p: Array) -> Array:
    with np.errstate(divide="ignore"):  # log 0 is -inf
        return np.log(np.clip(p, 0.0, 1.0))  # type: ignore[no-any-return]


def _parts(scores: Array) -> Iterator[tuple[slice, Array]]:
    """The rows in parts, as float64: scores of a large vocabulary are never widened at once."""
    size = max(_NUMBERS // max(scores.shape[1], 1), 1)
    for start in range(0, len(scores), size):
        part = slice(start, start + size)
        yield part, np.ascontiguousarray(scores[part], np.float64)
