"""Metrics by name, and the defaults of each loss."""

from __future__ import annotations

from typing import Any

import pytest

import onward.losses
from onward.errors import OptionError
from onward.runner.metrics.make_metric import METRICS, default_metrics, make_metric

LOWER = {"log_loss", "perplexity", "mae", "mse", "rmse", "mape"}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_has_the_name_it_is_made_by(name: str) -> None:
    metric = make_metric(name)
    assert metric.name == name
    assert metric.higher_is_better == (name not in LOWER)


def test_settings_of_the_metric_and_of_its_scores_are_given_together() -> None:
    metric: Any = make_metric("f1", average="micro", ignore_index=-1)
    assert (metric.average, metric.scores.ignore_index) == ("micro", -1)
    assert make_metric("top3").name == "top3"
    perplexity: Any = make_metric("perplexity", ignore_index=-100)
    assert (perplexity.scores.axis, perplexity.scores.ignore_index) == (-1, -100)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("acuracy", {}, "no metric 'acuracy'\ndid you mean 'accuracy'"),
        ("top0", {}, "no metric 'top0'\ndid you mean 'top5'"),
        ("f1", {"avrage": "macro"}, "metric 'f1' has no setting 'avrage'\ndid you mean 'average'?"),
        ("f1", {"measure": "recall"}, "metric 'f1' has no setting 'measure'"),
        ("mae", {"axis": 1}, "metric 'mae' has no setting 'axis'\nits settings are none"),
        ("f1", {"average": "mean"}, "ClassAverage.average must be one of"),
    ],
)
def test_unknown_names_and_settings_get_the_nearest(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        make_metric(name, **settings)


@pytest.mark.parametrize(
    ("loss", "shape", "names"),
    [
        ("CrossEntropy", ("batch", 10), ["accuracy", "f1"]),
        ("cross_entropy", (None, 10, 32, 32), ["accuracy", "f1"]),
        ("CrossEntropy", ("batch", "time", 100), ["perplexity"]),
        ("BCEWithLogits", ("batch",), ["accuracy", "auc"]),
        ("BCEWithLogits", ("batch", 1), ["accuracy", "auc"]),
        ("BCEWithLogits", ("batch", 5), ["accuracy", "f1"]),
        ("MSE", ("batch", 1), ["mae", "r2"]),
        ("smooth_l1", ("batch",), ["mae", "r2"]),
        ("CTC", ("time", "batch", 30), []),
    ],
)
def test_default_metrics_fit_the_loss(loss: str, shape: Any, names: list[str]) -> None:
    assert [metric.name for metric in default_metrics(loss, shape)] == names


def test_the_axis_of_the_loss_decides_what_three_axes_are() -> None:
    metric: Any = default_metrics("CrossEntropy", ("batch", 4, "time"), axis=1)[0]
    assert (metric.name, metric.scores.axis) == ("accuracy", 1)


def test_every_loss_is_known() -> None:
    for name in onward.losses.__all__:
        if name != "Loss":
            default_metrics(name, ("batch", 3))
    with pytest.raises(OptionError, match="no loss 'CrosEntropy'\ndid you mean 'crossentropy'"):
        default_metrics("CrosEntropy", ("batch", 3))
