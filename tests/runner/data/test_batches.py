"""Batches: order, resuming, threads, errors, waiting."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.errors import ColumnMissing, DataError, OptionError
from onward.runner.data.batches import Batches, run_ahead
from onward.runner.data.in_memory import ArrayDataset
from onward.runner.data.order import class_balanced, split


def numbers(count: int) -> ArrayDataset:
    return ArrayDataset({"x": np.arange(count), "y": -np.arange(count)})


def data_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("onward-data")]


@given(
    count=st.integers(1, 40), size=st.integers(1, 12), seed=st.integers(0, 99),
    epoch=st.integers(0, 5), threads=st.integers(0, 3), ahead=st.integers(1, 4), data=st.data(),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_resumed_epochs_are_the_rest_of_the_epoch(
    count: int, size: int, seed: int, epoch: int, threads: int, ahead: int, data: st.DataObject
) -> None:
    batches = Batches(numbers(count), size, seed=seed, threads=threads, ahead=ahead)
    whole = list(batches.epoch(epoch))
    assert len(whole) == len(batches)
    seen = np.concatenate([batch.positions for batch in whole])
    assert sorted(seen.tolist()) == list(range(count))
    start = data.draw(st.integers(0, len(batches)))
    again = list(Batches(numbers(count), size, seed=seed).epoch(epoch, start))
    assert len(again) == len(whole) - start
    for one, other in zip(whole[start:], again):
        np.testing.assert_array_equal(one.positions, other.positions)
        np.testing.assert_array_equal(one.feeds["x"], other.positions)
        np.testing.assert_array_equal(one.feeds["y"], -other.positions)
    assert not data_threads()


def test_incomplete_batches_may_be_dropped() -> None:
    batches = Batches(numbers(10), 4, drop_last=True)
    assert [len(batch) for batch in batches.epoch(0)] == [4, 4] and len(batches) == 2
    assert [len(batch) for batch in Batches(numbers(10), 4).epoch(0)] == [4, 4, 2]


def test_rows_of_a_split_and_a_class_balanced_order() -> None:
    labels = np.array([0] * 18 + [1] * 2)
    data = ArrayDataset({"label": labels})
    train, validation = split(20, 0.5, 0, labels)
    batches = Batches(data, 5, positions=train, order=lambda e: class_balanced(labels[train], 0, e))
    seen = np.concatenate([batch.positions for batch in batches.epoch(0)])
    assert not set(seen) & set(validation)
    assert np.bincount(labels[seen]).tolist() == [5, 5]
    held = Batches(data, 7, positions=validation, shuffle=False)
    rows = np.concatenate([batch.positions for batch in held.epoch(0)])
    assert rows.tolist() == validation.tolist()


def test_only_the_wanted_columns_are_read_and_transformed() -> None:
    def transform(feeds: dict[str, Any], epoch: int, positions: Any) -> dict[str, Any]:
        return {"z": feeds["x"] * 10 + epoch, "p": positions}

    batches = Batches(numbers(3), 2, columns=["x"], shuffle=False, transform=transform)
    [first, _] = batches.epoch(7)
    assert first.feeds["z"].tolist() == [7, 17] and first.feeds["p"].tolist() == [0, 1]


class Blocked:
    """A dataset whose reads wait until they are allowed."""

    columns = numbers(1).columns

    def __init__(self) -> None:
        self.started, self.allowed = threading.Semaphore(0), threading.Semaphore(0)
        self.reads: list[int] = []

    def __len__(self) -> int:
        return 100

    def read(self, positions: Any, columns: Sequence[str] | None = None) -> dict[str, Any]:
        self.reads.append(int(positions[0]))
        self.started.release()
        assert self.allowed.acquire(timeout=10)
        if positions[0] == 3:
            raise DataError("row 3 is wrong")
        return {"x": positions}


def test_batches_are_read_ahead_but_not_further() -> None:
    data = Blocked()
    batches = Batches(data, 1, shuffle=False, threads=1, ahead=2).epoch(0)
    data.allowed.release(3)
    assert next(batches).positions.tolist() == [0]
    for _ in range(3):
        assert data.started.acquire(timeout=10)
    assert data.reads == [0, 1, 2] and len(data_threads()) == 1
    batches.close()
    assert data.reads == [0, 1, 2] and not data_threads()


def test_an_error_in_a_thread_reaches_the_consumer_in_its_turn() -> None:
    data = Blocked()
    data.allowed.release(100)
    seen = []
    with pytest.raises(DataError, match="row 3 is wrong"):
        for batch in Batches(data, 1, shuffle=False, threads=3, ahead=4).epoch(0):
            seen.append(int(batch.positions[0]))
    assert seen == [0, 1, 2] and not data_threads()


def test_an_interrupt_stops_the_threads() -> None:
    data = Blocked()
    data.allowed.release(100)
    batches = Batches(data, 1, shuffle=False, threads=2).epoch(0)
    next(batches)
    with pytest.raises(KeyboardInterrupt):
        batches.throw(KeyboardInterrupt)
    assert not data_threads() and next(batches, None) is None


def test_an_iterator_that_is_dropped_leaks_no_threads() -> None:
    for batch in Batches(numbers(50), 1, threads=2).epoch(0):
        assert len(batch) == 1
        break
    assert not data_threads()


def test_calls_are_made_when_they_are_due() -> None:
    made: list[int] = []
    results = run_ahead((lambda n=n: made.append(n) or n for n in range(9)), threads=0, ahead=3)
    assert next(results) == 0 and made == [0]


def test_waiting_is_measured_by_the_clock() -> None:
    ticks = itertools.count()
    batches = Batches(numbers(4), 2, threads=0, clock=lambda: float(next(ticks)))
    list(batches.epoch(0))
    assert batches.waited == 3  # two batches and the end, one tick each


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"size": 0}, OptionError, "Batches.size must be a whole number, at least 1, not 0"),
        ({"threads": -1}, OptionError, "Batches.threads must be"),
        ({"ahead": 0}, OptionError, "Batches.ahead must be"),
        ({"seed": "x"}, OptionError, "Batches.seed must be a whole number"),
        ({"shuffle": 1}, OptionError, "Batches.shuffle must be True or False"),
        ({"columns": ["xx"]}, ColumnMissing, "no column 'xx'"),
        ({"positions": [9]}, DataError, "has no row 9"),
        ({"positions": np.zeros(0, int)}, DataError, "there are no rows to make batches of"),
        ({"size": 9, "drop_last": True}, DataError, "4 rows do not fill one batch of 9"),
    ],
)
def test_wrong_settings_are_refused(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Batches(numbers(4), **{"size": 2, **settings})


def test_wrong_places_are_refused() -> None:
    batches = Batches(numbers(4), 2)
    with pytest.raises(OptionError, match="start must be a whole number from 0 to 2, not 3"):
        batches.epoch(0, start=3)
    with pytest.raises(OptionError, match="epoch must be a whole number, at least 0, not -1"):
        batches.epoch(-1)
    uneven = Batches(numbers(4), 2, order=lambda epoch: np.arange(4 - epoch))
    with pytest.raises(DataError, match=r"order\(1\) has 3 rows, but order\(0\) 4"):
        uneven.epoch(1)
