"""RowCache, and batches that are made several at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from onward.errors import DataError
from onward.runner.data import batches as module
from onward.runner.data.batches import Batches
from onward.runner.data.in_memory import ArrayDataset
from onward.runner.data.row_cache import RowCache


class Counted:
    """A dataset that counts the rows that are read, and has one that is broken."""

    def __init__(self, count: int, broken: int = -1) -> None:
        self._data, self._broken, self.rows = ArrayDataset({"x": np.arange(count)}), broken, 0
        self.columns = self._data.columns

    def __len__(self) -> int:
        return len(self._data)

    def read(self, positions: Any, columns: Sequence[str] | None = None) -> dict[str, Any]:
        if self._broken in positions:
            raise DataError(f"row {self._broken} is broken")
        self.rows += len(positions)
        return self._data.read(positions, columns)


def double(feeds: dict[str, Any], epoch: int, positions: Any) -> dict[str, Any]:
    return {"x": feeds["x"] * 2.0}


def read(batches: Batches, epoch: int, start: int = 0) -> list[tuple[list[float], list[int]]]:
    return [(b.feeds["x"].tolist(), b.positions.tolist()) for b in batches.epoch(epoch, start)]


@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize("together", [1, 3, 64])
def test_batches_made_together_and_kept_are_the_same(
    threads: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GROUP_BATCHES", together)
    plain = Batches(Counted(23), 4, transform=double, threads=threads)
    fast = Batches(Counted(23), 4, transform=double, threads=threads, row_wise=True, repeats=True)
    for epoch in range(3):
        assert read(fast, epoch) == read(plain, epoch)
        assert read(fast, epoch, start=2) == read(plain, epoch, start=2)


def test_rows_are_prepared_once() -> None:
    data = Counted(20)
    batches = Batches(data, 4, transform=double, row_wise=True, repeats=True)
    for epoch in range(3):
        assert len(read(batches, epoch)) == 5
    assert data.rows == 20


def test_rows_that_change_with_the_epoch_are_not_kept() -> None:
    data = Counted(20)
    batches = Batches(data, 4, transform=double, row_wise=True)
    for epoch in range(3):
        read(batches, epoch)
    assert data.rows == 60


def test_an_error_comes_in_the_turn_of_its_batch() -> None:
    batches = Batches(Counted(20, broken=9), 4, shuffle=False, row_wise=True)
    epoch = batches.epoch(0)
    assert [next(epoch).positions[0], next(epoch).positions[0]] == [0, 4]
    with pytest.raises(DataError, match="row 9 is broken"):
        next(epoch)


def test_more_rows_than_the_limit_are_not_kept() -> None:
    cache = RowCache(rows=100, limit=799)
    cache.put(np.array([1]), {"x": np.array([2.0])})
    assert cache.get(np.array([1])) is None


def test_rows_of_different_sizes_are_not_kept() -> None:
    cache = RowCache(rows=2)
    cache.put(np.array([0]), {"x": np.ones((1, 3))})
    cache.put(np.array([1]), {"x": np.ones((1, 4))})
    assert cache.get(np.array([0])) is None
