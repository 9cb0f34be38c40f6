"""Metrics of language models: perplexity and token accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from numpy.typing import ArrayLike

from onward.runner.metrics.class_scores import ScoreSettings
from onward.runner.metrics.classification import Accuracy
from onward.runner.metrics.log_loss import LogLoss
from onward.settings import explain_keywords

TOKENS = ScoreSettings(task="multiclass", axis=-1)  # (batch, time, vocabulary)


@explain_keywords
@dataclass(kw_only=True)
class Perplexity:
    """exp of the mean -log p(token): the size of a vocabulary that is as hard to guess evenly.

    Targets are the tokens to predict at each position: those of the input, one to the left.

    Attributes:
        scores: how outputs and targets are read

    >>> perplexity = Perplexity()
    >>> perplexity.update([[[0.0, 0.0, 0.0, 0.0]]], [[2]])  # (batch, time, vocabulary)
    >>> round(perplexity.result(), 4)
    4.0
    """

    scores: ScoreSettings = TOKENS
    name: ClassVar[str] = "perplexity"
    higher_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._loss = LogLoss(scores=self.scores, name=self.name)

    def reset(self) -> None:
        """Forget all rows."""
        self._loss.reset()

    def update(
        self, outputs: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """Add a batch."""
        self._loss.update(outputs, targets, weights)

    def merge(self, other: Perplexity) -> None:
        """Add the rows of another metric."""
        self._loss.merge(other._loss)

    def result(self) -> float:
        """The perplexity over all tokens; infinite beyond every float."""
        try:
            return math.exp(self._loss.result())
        except OverflowError:
            return math.inf


def token_accuracy(scores: ScoreSettings = TOKENS) -> Accuracy:
    """The share of tokens that are the most probable ones, of (batch, time, vocabulary).

    >>> metric = token_accuracy()
    >>> metric.update([[[0.1, 0.9], [0.8, 0.2]]], [[1, 1]])
    >>> metric.name, metric.result()
    ('token_accuracy', 0.5)
    """
    return Accuracy(scores=scores, name="token_accuracy")
