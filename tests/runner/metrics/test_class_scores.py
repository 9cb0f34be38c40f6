"""How scores and labels are read: tasks, axes, ignored labels, probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.errors import MetricError, OptionError
from onward.runner.metrics.class_scores import ScoreSettings


@pytest.mark.parametrize(
    ("outputs", "targets", "task", "classes", "rows"),
    [
        ((5, 3), (5,), "multiclass", 3, (5, 3)),
        ((5, 3, 2, 4), (5, 2, 4), "multiclass", 3, (40, 3)),
        ((5, 2, 3), (5, 2), "multiclass", 3, (10, 3)),
        ((5,), (5,), "binary", 2, (5,)),
        ((5, 1), (5,), "binary", 2, (5,)),
        ((5, 1), (5, 1), "binary", 2, (5,)),
        ((5,), (5, 1), "binary", 2, (5,)),
        ((5, 1, 2, 2), (5, 2, 2), "binary", 2, (20,)),
        ((5, 3), (5, 3), "multilabel", 3, (15,)),
        ((1, 3), (1,), "multiclass", 3, (1, 3)),
    ],
)
def test_the_task_follows_from_the_shapes(
    outputs: Any, targets: Any, task: str, classes: int, rows: Any
) -> None:
    read = ScoreSettings().read("m", np.zeros(outputs), np.zeros(targets, np.int64))
    assert (read.task, read.classes, read.scores.shape) == (task, classes, rows)


def test_rows_have_the_scores_of_their_label() -> None:
    scores = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    first = ScoreSettings().read("m", scores, np.zeros((2, 4), int))
    last = ScoreSettings().read("m", scores, np.zeros((2, 3), int))
    assert first.scores[1].tolist() == scores[0, :, 1].tolist()
    assert last.scores[1].tolist() == scores[0, 1].tolist()


def test_columns_of_a_multilabel_model_follow_its_axis() -> None:
    labels = np.zeros((2, 3, 2), int)
    rows = ScoreSettings(task="multilabel", axis=1).read("m", labels + 0.5, labels)
    assert rows.columns[:6].tolist() == [0, 0, 1, 1, 2, 2] and rows.classes == 3


def test_an_ambiguous_axis_must_be_given() -> None:
    scores, labels = np.zeros((2, 3, 3)), np.zeros((2, 3), int)
    with pytest.raises(
        MetricError, match="the classes may be on axis 1 or 2\ngive axis=1 or axis=2"
    ):
        ScoreSettings().read("m", scores, labels)
    assert ScoreSettings(axis=-1).read("m", scores, labels).classes == 3


def test_ignored_labels_do_not_count_even_if_their_outputs_are_nan() -> None:
    scores = np.array([[0.0, 1.0], [np.nan, 0.0]])
    rows = ScoreSettings(ignore_index=-100).read("m", scores, [1, -100])
    assert rows.labels.tolist() == [1] and rows.scores.shape == (1, 2)


@pytest.mark.parametrize(
    ("labels", "settings", "message"),
    [
        ([0, 3], {}, r"label 3 at row 1 is not one of the 3 classes \(0 to 2\)\ngive ignore_in"),
        ([0, -1], {}, "label -1 at row 1 is not one of the 3 classes"),
        ([0.0, 0.5], {}, "targets must be class indices, not 0.5"),
        ([0.0, np.nan], {}, "targets must be class indices, not nan"),
        ([0, 1], {"axis": 2}, "without axis 2"),
        ([0, 1], {"task": "binary"}, "a binary model needs a target, 0 or 1, for each output"),
        ([0, 1], {"probabilities": True}, "probabilities must be from 0 to 1, outputs are from"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: Any, settings: Any, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        ScoreSettings(**settings).read("m", [[5.0, 1.0, 0.0], [1.0, 2.0, 3.0]], labels)


def test_a_label_of_a_binary_model_is_0_or_1() -> None:
    with pytest.raises(MetricError, match="label 2 at row 1, 0 is not one of the 2 classes"):
        ScoreSettings().read("m", np.zeros((2, 3)), [[0, 0, 0], [2, 0, 0]])


def test_a_multilabel_model_has_two_axes() -> None:
    with pytest.raises(MetricError, match=r"\(rows, labels\), not \[3\]\ngive task='binary'"):
        ScoreSettings(task="multilabel").read("m", np.zeros(3), [0, 1, 0])


def test_the_threshold_is_a_probability() -> None:
    logits, labels = np.array([-3.0, 0.0, 1.0, 2.0]), [0, 0, 0, 0]
    for settings, expected in [
        (ScoreSettings(), [0, 0, 1, 1]),
        (ScoreSettings(threshold=0.8), [0, 0, 0, 1]),
        (ScoreSettings(threshold=0.01), [1, 1, 1, 1]),
    ]:
        decided = settings.decide(settings.read("m", logits, labels))
        assert decided.tolist() == expected
    settings = ScoreSettings(probabilities=True, threshold=0.8)
    rows = settings.read("m", 1 / (1 + np.exp(-logits)), labels)
    assert settings.decide(rows).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "regression"}, "ScoreSettings.task must be one of 'auto', 'multiclass'"),
        ({"threshold": 1.0}, "ScoreSettings.threshold must be a number between 0 and 1, not 1.0"),
        ({"ignore_idx": 1}, "has no setting 'ignore_idx'\ndid you mean 'ignore_index'?"),
        ({"axis": "last"}, "ScoreSettings.axis must be a whole number"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ScoreSettings(**settings)
