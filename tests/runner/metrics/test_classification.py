"""Accuracy, top-k, precision, recall and F1 against definitions counted row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.errors import MetricError, OptionError
from onward.runner.metrics.class_scores import ScoreSettings
from onward.runner.metrics.classification import Accuracy, ClassAverage, TopKAccuracy

RNG = np.random.default_rng(3)
SCORES, LABELS = RNG.normal(size=(60, 6)), RNG.integers(0, 5, 60)  # class 5 is never a label
SCORES[:, 5] -= 9  # nor an answer
MANY, YES = RNG.normal(size=(40, 3)), RNG.integers(0, 2, (40, 3))


def expected_average(answers: Any, labels: Any, measure: str, average: str) -> float:
    """Of sets of (row, class) pairs, as scikit-learn's pages define the averages."""
    answered, labelled = set(answers), set(labels)
    classes = sorted({k for _, k in answered | labelled})

    def one(kept: Any) -> float:
        a, b = ({pair for pair in each if pair[1] in kept} for each in (answered, labelled))
        precision = len(a & b) / len(a) if a else 0.0
        recall = len(a & b) / len(b) if b else 0.0
        if measure != "f1":
            return precision if measure == "precision" else recall
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0

    if average == "micro":
        return one(classes)
    shares = [sum(pair[1] == k for pair in labelled) for k in classes]
    shares = shares if average == "weighted" else [1] * len(classes)
    return sum(s * one([k]) for s, k in zip(shares, classes)) / sum(shares)


@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
@pytest.mark.parametrize("measure", ["precision", "recall", "f1"])
def test_averages_match_sets_of_pairs(measure: str, average: str) -> None:
    metric = ClassAverage(measure=measure, average=average)
    metric.update(SCORES, LABELS)
    answers = [(i, max(range(6), key=row.__getitem__)) for i, row in enumerate(SCORES.tolist())]
    expected = expected_average(answers, enumerate(LABELS.tolist()), measure, average)
    assert metric.result() == pytest.approx(expected, rel=1e-12)
    metric.reset()
    metric.update(MANY, YES)
    pairs = [[(int(i), int(k)) for i, k in np.argwhere(each)] for each in (MANY > 0, YES == 1)]
    expected = expected_average(*pairs, measure, average)
    assert metric.result() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("measure", "expected"), [("precision", 2 / 3), ("recall", 2 / 4),
                                                   ("f1", 4 / 7)])  # fmt: skip
@pytest.mark.parametrize("average", ["auto", "binary"])
def test_binary_averages_are_those_of_class_1(measure: str, expected: float, average: str) -> None:
    logits, labels = np.array([1.0, 2.0, 0.5, -1.0, -2.0, -3.0]), [1, 1, 0, 1, 1, 0]
    metric = ClassAverage(measure=measure, average=average)
    metric.update(logits, labels)
    assert metric.result() == pytest.approx(expected)
    if average == "binary":
        metric.reset()
        metric.update(np.stack([0 * logits, logits], axis=1), labels)
        assert metric.result() == pytest.approx(expected)


def test_binary_macro_counts_both_classes() -> None:
    metric = ClassAverage(average="macro")
    metric.update([1.0, 1.0, -1.0, -1.0], [1, 0, 0, 0])
    assert metric.result() == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_a_label_that_never_occurs_counts_in_a_multilabel_macro() -> None:
    metric = ClassAverage(average="macro")
    metric.update([[1.0, -1.0]], [[1, 0]])
    assert metric.result() == 0.5
    weighted = ClassAverage(average="weighted")
    weighted.update([[1.0, -1.0]], [[0, 0]])
    assert weighted.result() == 0.0


def test_the_binary_average_needs_two_classes() -> None:
    with pytest.raises(MetricError, match="f1_binary: average 'binary' needs 2 classes"):
        ClassAverage(average="binary").update(SCORES, LABELS)
    with pytest.raises(OptionError, match=r"ClassAverage.average must be one of 'auto', 'binary'"):
        ClassAverage(average="mean")


def test_accuracy_of_every_layout() -> None:
    images = SCORES.reshape(10, 6, 6).transpose(0, 2, 1).reshape(10, 6, 2, 3)
    rows = np.mean([max(range(6), key=row.__getitem__) == label
                    for row, label in zip(SCORES.tolist(), LABELS)])  # fmt: skip
    accuracy = Accuracy()
    for outputs, targets, expected in [
        (SCORES, LABELS, rows),
        (images, LABELS.reshape(10, 2, 3), rows),
        (SCORES.reshape(4, 15, 6), LABELS.reshape(4, 15), rows),
        (MANY, YES, np.mean((MANY > 0) == YES)),
        (MANY[:, :1], YES[:, 0], np.mean((MANY[:, 0] > 0) == YES[:, 0])),
    ]:
        accuracy.reset()
        accuracy.update(outputs, targets)
        assert accuracy.result() == pytest.approx(expected, rel=1e-12)


def test_ignored_rows_count_neither_as_right_nor_as_wrong() -> None:
    accuracy = Accuracy(scores=ScoreSettings(ignore_index=4))
    accuracy.update(SCORES, LABELS)
    kept = LABELS != 4
    assert accuracy.result() == np.mean(SCORES[kept].argmax(1) == LABELS[kept])


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_matches_a_stable_sort(k: int) -> None:
    scores = np.round(SCORES)  # with ties
    metric = TopKAccuracy(k=k)
    metric.update(scores, LABELS)
    best = [sorted(range(6), key=lambda c, row=row: -row[c])[:k] for row in scores]  # type: ignore[misc]
    expected = np.mean([label in each for label, each in zip(LABELS, best)])
    assert metric.result() == pytest.approx(expected, rel=1e-12)


def test_top_k_needs_more_classes_than_k() -> None:
    with pytest.raises(MetricError, match=r"top6 needs more than 6 classes.*\ngive a smaller k"):
        TopKAccuracy(k=6).update(SCORES, LABELS)
    with pytest.raises(MetricError, match="the outputs are multilabel with 3"):
        TopKAccuracy(k=2).update(MANY, YES)
