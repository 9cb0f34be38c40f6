"""AUC and the ROC curve against all pairs of rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from onward.errors import MetricError
from onward.runner.metrics.class_scores import ScoreSettings
from onward.runner.metrics.ranking import AUC, roc_points

RNG = np.random.default_rng(1)
SCORES, LABELS = np.round(RNG.normal(size=50), 1), RNG.integers(0, 2, 50)
WEIGHTS = RNG.random(50)


def pairs_in_order(scores: Any, positive: Any, weights: Any = None) -> float:
    weights = np.ones(len(scores)) if weights is None else weights
    won = total = 0.0
    for i in np.flatnonzero(positive):
        for j in np.flatnonzero(~np.asarray(positive, bool)):
            pair = weights[i] * weights[j]
            won += pair * ((scores[i] > scores[j]) + (scores[i] == scores[j]) / 2)
            total += pair
    return float(won / total)


def area(outputs: Any, targets: Any, weights: Any = None, **settings: Any) -> float:
    metric = AUC(scores=ScoreSettings(**settings))
    metric.update(outputs, targets, weights)
    return metric.result()


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_auc_counts_pairs_in_order(weights: Any) -> None:
    expected = pytest.approx(pairs_in_order(SCORES, LABELS, weights), rel=1e-12)
    assert area(SCORES, LABELS, weights) == expected
    assert area(SCORES[:, None], LABELS, weights) == expected
    assert area(np.stack([SCORES, 2 * SCORES], axis=1), LABELS, weights) == expected


def test_auc_of_several_classes_is_one_against_the_rest_by_probability() -> None:
    logits, labels = RNG.normal(size=(60, 4)), RNG.integers(0, 3, 60)  # no row of class 3
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = np.mean([pairs_in_order(p[:, k], labels == k) for k in range(3)])
    assert area(logits, labels) == pytest.approx(expected, rel=1e-12)
    assert area(p, labels, probabilities=True) == pytest.approx(expected, rel=1e-12)


def test_auc_of_several_labels_is_their_mean() -> None:
    scores, labels = RNG.normal(size=(30, 3)), RNG.integers(0, 2, (30, 3))
    expected = np.mean([pairs_in_order(scores[:, k], labels[:, k]) for k in range(3)])
    assert area(scores, labels) == pytest.approx(expected, rel=1e-12)


def test_auc_of_one_class_only_is_nan() -> None:
    assert math.isnan(area([0.1, 0.2], [1, 1]))
    assert math.isnan(area(np.eye(3), [2, 2, 2]))


def test_the_kept_scores_have_a_limit() -> None:
    metric = AUC(most_scores=10)
    metric.update(SCORES[:10], LABELS[:10])
    with pytest.raises(MetricError, match="auc keeps every score, and there are more than 10\n"):
        metric.update(SCORES[:1], LABELS[:1])


def test_scores_of_minus_infinity_are_the_lowest() -> None:
    assert area([-np.inf, 0.0, np.inf], [0, 1, 1]) == 1.0
    with pytest.raises(MetricError, match="a row has several infinite outputs"):
        area([[-np.inf, -np.inf]], [1])


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_roc_curve_has_the_area(weights: Any) -> None:
    metric = AUC()
    for part in (slice(0, 20), slice(20, 50)):
        metric.update(SCORES[part], LABELS[part], None if weights is None else weights[part])
    fpr, tpr = metric.curve()
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(tpr, fpr) == pytest.approx(metric.result(), rel=1e-12)
    best = SCORES.max()
    assert tpr[1] == pytest.approx(np.average((best <= SCORES)[LABELS == 1], weights=(
        None if weights is None else weights[LABELS == 1])))  # fmt: skip


def test_a_curve_is_of_two_classes() -> None:
    metric = AUC()
    with pytest.raises(MetricError, match="auc has no rows"):
        metric.curve()
    metric.update(np.eye(3), [0, 1, 2])
    with pytest.raises(MetricError, match=r"a ROC curve is of 2 classes.*\ndraw a curve of one"):
        metric.curve()


def test_rates_of_one_class_only_are_nan() -> None:
    fpr, tpr = roc_points(np.array([1.0, 2.0]), np.array([1, 1]))
    assert np.isnan(fpr).all() and tpr.tolist() == [0.0, 0.5, 1.0]
