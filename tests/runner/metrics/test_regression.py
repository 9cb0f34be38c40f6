"""Metrics of numbers against numpy's means and variances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from onward.errors import MetricError
from onward.runner.metrics.make_metric import make_metric
from onward.runner.metrics.regression import VarianceShare

RNG = np.random.default_rng(7)
Y, T, W = RNG.normal(size=20), RNG.normal(size=20) + 0.5, RNG.random(20)


def value(name: str, outputs: Any, targets: Any, weights: Any = None) -> float:
    metric = make_metric(name)
    metric.update(outputs, targets, weights)
    return metric.result()


def expected(name: str, y: Any, t: Any, w: Any) -> float:
    def mean(x: Any) -> Any:
        return np.average(x, weights=w)

    d = t - y
    variance = mean((t - mean(t)) ** 2)
    return float(
        {
            "mae": mean(abs(d)),
            "mse": mean(d**2),
            "rmse": math.sqrt(mean(d**2)),
            "mape": mean(abs(d / t)),
            "r2": 1 - mean(d**2) / variance,
            "explained_variance": 1 - mean((d - mean(d)) ** 2) / variance,
        }[name]
    )


@pytest.mark.parametrize("name", ["mae", "mse", "rmse", "mape", "r2", "explained_variance"])
@pytest.mark.parametrize("weights", [None, W])
def test_regression_metrics_match_numpy(name: str, weights: Any) -> None:
    wanted = pytest.approx(expected(name, Y, T, weights), rel=1e-12)
    assert value(name, Y, T, weights) == wanted
    assert value(name, Y[:, None], T, weights) == wanted  # (n, 1) and (n,) do not broadcast


@pytest.mark.parametrize("name", ["r2", "explained_variance"])
def test_variance_shares_of_columns_are_averaged(name: str) -> None:
    y, t = Y.reshape(10, 2), T.reshape(10, 2)
    mean = np.mean([expected(name, y[:, k], t[:, k], None) for k in range(2)])
    assert value(name, y, t) == pytest.approx(mean, rel=1e-12)
    constant = np.ones((10, 1))  # its variance is 0: it is left out
    both = value(name, np.hstack([y, constant]), np.hstack([t, constant]))
    assert both == pytest.approx(mean, rel=1e-12)
    whole = value(name, Y.reshape(5, 2, 2), T.reshape(5, 2, 2))
    assert whole == pytest.approx(expected(name, Y, T, None), rel=1e-12)


def test_r2_of_targets_far_from_zero_is_exact() -> None:
    t = np.array([1e9, 1e9 + 1, 1e9 + 2])  # squares of these differ in digits beyond float64
    assert value("r2", t + np.array([0.5, 0, -0.5]), t) == 0.75


def test_r2_of_equal_targets_is_nan() -> None:
    assert math.isnan(value("r2", [1.0, 2.0], [3.0, 3.0]))
    assert math.isnan(value("explained_variance", [1.0], [3.0]))


def test_mape_of_a_target_of_0_is_nan() -> None:
    assert math.isnan(value("mape", [1.0, 2.0], [0.0, 2.0]))


def test_numbers_that_are_too_large_are_refused() -> None:
    with pytest.raises(MetricError, match=r"mse: outputs has a number beyond 1e.100\nlook at"):
        value("mse", [math.inf], [1.0])


def test_nan_targets_are_refused() -> None:
    with pytest.raises(MetricError, match="mae: targets has NaN at row 1, 0"):
        value("mae", [[1.0], [2.0]], [[1.0], [math.nan]])


def test_batches_with_other_columns_are_refused() -> None:
    metric = VarianceShare()
    metric.update(np.ones((3, 2)), np.ones((3, 2)))
    with pytest.raises(MetricError, match="r2: this batch has 4 columns, earlier ones had 2"):
        metric.update(np.ones((3, 4)), np.ones((3, 4)))
