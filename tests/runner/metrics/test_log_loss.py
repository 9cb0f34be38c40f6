"""The log loss against logarithms of probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from onward.errors import MetricError
from onward.runner.metrics import log_loss
from onward.runner.metrics.class_scores import ScoreSettings
from onward.runner.metrics.log_loss import LogLoss

RNG = np.random.default_rng(2)
LOGITS, LABELS = RNG.normal(size=(9, 4)), RNG.integers(0, 4, 9)
P = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)


def loss(outputs: Any, targets: Any, weights: Any = None, **settings: Any) -> float:
    metric = LogLoss(scores=ScoreSettings(**settings))
    metric.update(outputs, targets, weights)
    return metric.result()


def test_log_loss_of_classes() -> None:
    each = [-math.log(row[label]) for row, label in zip(P, LABELS)]
    assert loss(LOGITS, LABELS) == pytest.approx(np.mean(each), rel=1e-12)
    assert loss(P, LABELS, probabilities=True) == pytest.approx(np.mean(each), rel=1e-12)
    weights = RNG.random(9)
    expected = np.average(each, weights=weights)
    assert loss(LOGITS, LABELS, weights) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", [(12,), (12, 1), (4, 3)])
def test_log_loss_of_binary_and_several_labels(shape: tuple[int, ...]) -> None:
    x, t = RNG.normal(size=shape), RNG.integers(0, 2, shape)
    p = 1 / (1 + np.exp(-x))
    expected = np.mean([-math.log(q if y else 1 - q) for q, y in zip(p.ravel(), t.ravel())])
    assert loss(x, t) == pytest.approx(expected, rel=1e-12)
    assert loss(p, t, probabilities=True) == pytest.approx(expected, rel=1e-12)


def test_large_logits_keep_their_loss() -> None:
    assert loss([[10_000.0, -10_000.0]], [1]) == 20_000
    assert loss([10_000.0], [0]) == 10_000


def test_a_label_of_probability_0_costs_infinity() -> None:
    assert loss([[0.0, 1.0], [0.5, 0.5]], [0, 1], probabilities=True) == math.inf
    assert loss([[-math.inf, 1.0]], [0]) == math.inf
    assert loss([[-math.inf, 1.0]], [1]) == 0.0


def test_rows_without_a_finite_score_are_refused() -> None:
    with pytest.raises(MetricError, match="log_loss: outputs of row 1 are infinite\nonly some"):
        loss([[0.0, 1.0], [math.inf, 1.0]], [0, 0])


def test_scores_are_widened_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = loss(LOGITS, LABELS)
    monkeypatch.setattr(log_loss, "_NUMBERS", 9)
    assert loss(LOGITS, LABELS) == whole
