"""Metrics of several processes: merged, they have the result of all rows, bit for bit."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from onward.runner.metrics.confusion_matrix import ConfusionMatrix
from onward.runner.metrics.make_metric import METRICS, OF_NUMBERS, make_metric

LANGUAGE = ("perplexity", "token_accuracy")


def rows_for(name: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    if name in OF_NUMBERS:
        return rng.normal(size=50).astype(np.float32), rng.normal(size=50).astype(np.float32)
    shape = (50, 3, 7) if name in LANGUAGE else (50, 7)
    return rng.normal(size=shape).astype(np.float32), rng.integers(0, 7, shape[:-1])


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("cuts", [(20, 33), (0, 50), (50, 50)], ids=str)
def test_merged_metric_is_that_of_all_rows(name: str, cuts: tuple[int, int]) -> None:
    outputs, targets = rows_for(name)
    whole = make_metric(name)
    whole.update(outputs, targets)
    merged = make_metric(name)
    for first, last in zip((0, *cuts), (*cuts, 50)):
        part = make_metric(name)
        if last > first:  # a process may have had no rows
            part.update(outputs[first:last], targets[first:last])
        merged.merge(pickle.loads(pickle.dumps(part)))
    assert merged.result() == whole.result()


def test_merged_matrix_is_that_of_all_rows() -> None:
    outputs, targets = rows_for("accuracy")
    whole, first, second, empty = (ConfusionMatrix() for _ in range(4))
    whole.update(outputs, targets)
    first.update(outputs[:20], targets[:20])
    second.update(outputs[20:], targets[20:])
    empty.merge(first)
    empty.merge(second)
    empty.merge(ConfusionMatrix())
    assert (empty.result() == whole.result()).all()
