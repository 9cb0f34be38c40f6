"""The law of all metrics: the division into batches does not matter. And errors of batches."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.errors import MetricError
from onward.runner.metrics.confusion_matrix import ConfusionMatrix
from onward.runner.metrics.make_metric import METRICS, make_metric
from onward.runner.metrics.metric import Metric

Array = np.ndarray[Any, Any]

LANGUAGE = {"perplexity", "token_accuracy"}
NUMBERS = {"mae", "mse", "rmse", "mape", "r2", "explained_variance"}


def data(layout: str, rows: int, seed: int) -> tuple[Array, Array]:
    """Outputs with ties, and targets."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
        "classes": ((rows, 7), (rows,), 7),
        "images": ((rows, 7, 2, 3), (rows, 2, 3), 7),
        "tokens": ((rows, 3, 7), (rows, 3), 7),
        "binary": ((rows,), (rows,), 2),
        "labels": ((rows, 4), (rows, 4), 2),
    }
    if layout in ("numbers", "columns"):
        shape = (rows,) if layout == "numbers" else (rows, 3)
        return rng.normal(size=shape).astype(np.float32), rng.normal(size=shape) + 1e6
    outputs, targets, classes = shapes[layout]
    scores = np.round(rng.normal(size=outputs) * 2, 1).astype(np.float32)
    return scores, rng.integers(0, classes, targets)


def layouts(name: str) -> list[str]:
    if name in NUMBERS:
        return ["numbers", "columns"]
    if name in LANGUAGE:
        return ["tokens"]
    only_classes = ["classes", "images", "tokens"]
    return only_classes if name == "top5" else [*only_classes, "binary", "labels"]


CASES = [(name, layout) for name in METRICS for layout in layouts(name)]


@pytest.mark.parametrize(("name", "layout"), CASES)
@settings(max_examples=4, deadline=None)
@given(
    rows=st.integers(2, 30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    seed=st.integers(0, 99),
    weighted=st.booleans(),
)
def test_the_division_into_batches_does_not_matter(
    name: str, layout: str, rows: int, cuts: list[int], seed: int, weighted: bool
) -> None:
    outputs, targets = data(layout, rows, seed)
    weights = np.random.default_rng(seed).random(rows) if weighted else None
    metric: Metric = make_metric(name)
    metric.update(outputs, targets, weights)
    whole = metric.result()
    metric.reset()
    order = np.random.default_rng(seed).permutation(rows)
    for part in np.split(order, sorted(cuts)):
        metric.update(outputs[part], targets[part], None if weights is None else weights[part])
    assert np.array_equal(metric.result(), whole, equal_nan=True)  # bit for bit


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_weights_count_rows_several_times(name: str, layout: str) -> None:
    outputs, targets = data(layout, 12, 5)
    times = np.arange(12) % 3  # some 0 times
    weighted, repeated = make_metric(name), make_metric(name)
    weighted.update(outputs, targets, times)
    repeated.update(np.repeat(outputs, times, axis=0), np.repeat(targets, times, axis=0))
    assert weighted.result() == pytest.approx(repeated.result(), rel=1e-14)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("name", METRICS)
def test_outputs_of_any_float_type_are_read(name: str, dtype: Any) -> None:
    outputs, targets = data(layouts(name)[0], 20, 1)
    narrow, wide = make_metric(name), make_metric(name)
    narrow.update(outputs.astype(dtype), targets)
    wide.update(outputs.astype(dtype).astype(np.float64), targets)
    assert narrow.result() == wide.result()


@pytest.mark.parametrize("name", METRICS)
def test_no_rows_is_an_error(name: str) -> None:
    metric = make_metric(name)
    with pytest.raises(MetricError, match=r"has no rows\ncall update first"):
        metric.result()
    outputs, targets = data(layouts(name)[0], 3, 0)
    metric.update(outputs[:0], targets[:0])
    metric.update(outputs, targets, np.zeros(3))
    with pytest.raises(MetricError, match="has no rows"):
        metric.result()


@pytest.mark.parametrize("name", METRICS)
def test_nan_is_refused_with_its_row(name: str) -> None:
    outputs, targets = data(layouts(name)[0], 5, 0)
    outputs[3] = np.nan
    metric = make_metric(name)
    with pytest.raises(MetricError, match=rf"{metric.name}: outputs has NaN at row 3.*\nlook at"):
        metric.update(outputs, targets)


@pytest.mark.parametrize("name", METRICS)
def test_shapes_that_do_not_fit_are_shown_both(name: str) -> None:
    outputs, targets = data(layouts(name)[0], 5, 0)
    first = ", ".join(map(str, outputs.shape))
    second = ", ".join(map(str, targets[:4].shape))
    with pytest.raises(MetricError, match=rf"outputs have shape \[{first}\], targets \[{second}\]"):
        make_metric(name).update(outputs, targets[:4])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 2.0], r"weights have shape \[2\], targets \[3\]\ngive one weight per row"),
        ([1.0, -1.0, 0.0], "weights must be finite numbers, at least 0"),
        ([1.0, np.nan, 0.0], "weights must be finite numbers, at least 0"),
        (["a", "b", "c"], "weights must be an array of numbers, not list of <U1"),
    ],
)
def test_wrong_weights_are_refused(weights: list[Any], message: str) -> None:
    with pytest.raises(MetricError, match=message):
        make_metric("mae").update([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], weights)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (1.0, "outputs is one number, not a batch"),
        ([[1.0], [1.0, 2.0]], "outputs must be an array of numbers, not list"),
        (["cat", "dog"], "outputs must be an array of numbers.*\nencode names"),
    ],
)
def test_outputs_that_are_no_batch_of_numbers_are_refused(outputs: Any, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        make_metric("mae").update(outputs, [1.0, 2.0])


@pytest.mark.parametrize("make", [lambda: make_metric("f1"), lambda: make_metric("auc"),
                                  ConfusionMatrix])  # fmt: skip
def test_batches_of_different_models_are_refused(make: Any) -> None:
    metric = make()
    metric.update(*data("classes", 4, 0))
    with pytest.raises(MetricError, match="is binary with 2 classes, earlier ones were multiclass"):
        metric.update(*data("binary", 4, 0))
