"""Averages of parameters: exact, in any order, without what cannot be averaged."""

from __future__ import annotations

import itertools
import logging
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from onward.errors import DataError
from onward.training.federated import averaging
from onward.training.federated.averaging import (
    ClientUpdate,
    average_updates,
    exact_sum,
    weighted_mean,
)

BEFORE = [np.zeros((2, 3), np.float32), np.zeros(2, np.float32)]


def update(client: str, number: float, rows: int = 1, **metrics: float) -> ClientUpdate:
    return ClientUpdate(client, [np.full_like(each, number) for each in BEFORE], rows, metrics)


def test_the_mean_is_weighted_by_rows() -> None:
    found = average_updates([update("a", 1, rows=3, loss=1), update("b", 5, loss=3)], BEFORE)
    assert all((each == 2).all() and each.dtype == np.float32 for each in found.parameters)
    assert (found.clients, found.rows, dict(found.metrics)) == (("a", "b"), 4, {"loss": 1.5})


def test_sums_are_exact_and_the_same_in_every_order() -> None:
    rng = np.random.default_rng(0)
    scale = 2.0 ** rng.integers(-90, 90, (4, 200))
    arrays = list((rng.normal(size=(4, 200)) * scale).astype(np.float32))
    rows = [7, 1000003, 1, 64]
    expected = [
        float(sum((Fraction(float(array[i])) * n for array, n in zip(arrays, rows)), Fraction(0)))
        for i in range(200)
    ]
    first = exact_sum([array.astype(np.float64) * n for array, n in zip(arrays, rows)])
    assert first.tolist() == expected
    mean = weighted_mean(arrays, rows)
    for order in itertools.permutations(range(4)):
        other = weighted_mean([arrays[i] for i in order], [rows[i] for i in order])
        assert other.tobytes() == mean.tobytes()


def test_arrays_longer_than_a_chunk_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averaging, "_CHUNK", 4)
    arrays = [np.arange(11, dtype=np.float32), np.arange(11, dtype=np.float32) + 2]
    assert weighted_mean(arrays, [1, 1]).tolist() == [i + 1 for i in range(11)]


def broken(**changes: Any) -> ClientUpdate:
    whole = update("broken", 1)
    return ClientUpdate(**{**vars(whole), **changes})


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (broken(rows=0), "no rows"),
        (broken(parameters=[BEFORE[0]]), "sent 1 parameters, the model has 2"),
        (
            broken(parameters=[BEFORE[0], np.zeros(3, np.float32)]),
            r"parameter 1 is .* shape \(3,\)",
        ),
        (broken(parameters=[BEFORE[0], np.zeros(2)]), "float64"),
        (broken(parameters=[BEFORE[0] * np.nan, BEFORE[1]]), "parameter 0 holds NaN or infinity"),
        (broken(parameters=[BEFORE[0], BEFORE[1] + np.inf]), "parameter 1 holds NaN or infinity"),
    ],
)
def test_an_update_that_cannot_be_averaged_is_left_out_and_logged(
    bad: ClientUpdate, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "onward"), np.errstate(invalid="ignore"):
        found = average_updates([bad, update("good", 4)], BEFORE, {"absent": "it timed out"})
    assert found.clients == ("good",) and (found.parameters[0] == 4).all()
    assert set(found.left_out) == {"broken", "absent"}
    assert re.search(reason, found.left_out["broken"])
    assert "client broken is left out" in caplog.text and "timed out" in caplog.text


def test_without_an_update_the_parameters_stay() -> None:
    found = average_updates([], BEFORE, {"a": "lost"})
    assert found.rows == 0 and all(np.array_equal(a, b) for a, b in zip(found.parameters, BEFORE))


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="needs arrays and weights"):
        weighted_mean([], [])
