"""The confusion matrix against counts of pairs."""

from __future__ import annotations

import numpy as np
import pytest

from onward.errors import MetricError
from onward.runner.metrics.confusion_matrix import ConfusionMatrix, row_shares

RNG = np.random.default_rng(6)
SCORES, LABELS = RNG.normal(size=(40, 3)), RNG.integers(0, 3, 40)


def test_cells_count_pairs_of_label_and_answer() -> None:
    matrix, weights = ConfusionMatrix(), RNG.random(40)
    for given in (None, weights):
        matrix.reset()
        matrix.update(SCORES[:7], LABELS[:7], None if given is None else given[:7])
        matrix.update(SCORES[7:], LABELS[7:], None if given is None else given[7:])
        expected = np.zeros((3, 3))
        for row, label, weight in zip(SCORES, LABELS, np.ones(40) if given is None else given):
            expected[label, row.argmax()] += weight
        np.testing.assert_allclose(matrix.result(), expected, rtol=1e-12)
    assert matrix.names() == ["0", "1", "2"]


def test_a_binary_model_has_two_classes() -> None:
    matrix = ConfusionMatrix(classes=("no", "yes"))
    matrix.update([1.0, -1.0, 2.0], [1, 1, 0])
    assert matrix.result().tolist() == [[0, 1], [1, 1]] and matrix.names() == ["no", "yes"]


def test_shares_of_a_class_without_rows_are_zero() -> None:
    assert row_shares(np.array([[2, 2], [0, 0]])).tolist() == [[0.5, 0.5], [0, 0]]


def test_what_has_no_confusion_matrix_is_refused() -> None:
    with pytest.raises(MetricError, match=r"has 2 names, the outputs 3 classes\n.*'a', 'b'"):
        ConfusionMatrix(classes=["a", "b"]).update(SCORES, LABELS)
    with pytest.raises(MetricError, match="the outputs are multilabel with 3\ntake f1"):
        ConfusionMatrix().update(SCORES, SCORES > 0)
    with pytest.raises(MetricError, match="2000 classes at most"):
        ConfusionMatrix().update(np.zeros((1, 2001)), [0])
    with pytest.raises(MetricError, match="confusion matrix has no rows"):
        ConfusionMatrix().result()
    assert ConfusionMatrix().names() == []
