"""Batches that several processes share: no row is lost, repeated, or read by another process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.runner.data.batch_part import BatchPart
from onward.runner.data.batches import Batches
from onward.runner.data.in_memory import ArrayDataset


class CountedRows(ArrayDataset):
    """Remembers which rows were read."""

    def __init__(self, rows: int) -> None:
        super().__init__({"x": np.arange(rows, dtype=np.float32)[:, None]})
        self.seen: set[int] = set()

    def read(self, positions: Any, columns: Any = None) -> Any:
        self.seen |= set(np.asarray(positions).tolist())
        return super().read(positions, columns)


@pytest.mark.parametrize("shards", [None, 4, 6])
@pytest.mark.parametrize("processes", [1, 2, 3, 5])
@pytest.mark.parametrize(("rows", "size"), [(23, 4), (24, 4), (9, 16), (21, 3), (7, 1)])
@pytest.mark.parametrize("row_wise", [True, False])
def test_parts_of_all_processes_are_the_batch(
    rows: int, size: int, processes: int, shards: int | None, row_wise: bool
) -> None:
    data = [CountedRows(rows) for _ in range(processes)]
    whole = Batches(CountedRows(rows), size, seed=3, row_wise=row_wise, repeats=True)
    parts = [
        Batches(each, size, seed=3, row_wise=row_wise, repeats=True).part_of(
            BatchPart(rank, processes, shards)
        )
        for rank, each in enumerate(data)
    ]
    for epoch in range(3):
        made = [list(each.epoch(epoch)) for each in parts]
        for number, batch in enumerate(whole.epoch(epoch)):
            own = [batches[number] for batches in made]
            joined = np.concatenate([each.positions for each in own])
            np.testing.assert_array_equal(joined, batch.positions)
            feeds = np.concatenate([each.feeds["x"] for each in own])
            np.testing.assert_array_equal(feeds, batch.feeds["x"])
            assert {each.whole for each in own} == {len(batch)}
            if shards is None:
                lengths = [len(each) for each in own]
                assert max(lengths) - min(lengths) <= 1
        assert all(len(batches) == len(whole) for batches in made)


def test_a_process_reads_its_own_rows_only() -> None:
    data = CountedRows(20)
    batches = Batches(data, 8, shuffle=False, row_wise=True, threads=0).part_of(BatchPart(1, 2))
    found = [batch.positions.tolist() for batch in batches.epoch(0)]
    assert found == [[4, 5, 6, 7], [12, 13, 14, 15], [18, 19]]
    assert data.seen == {4, 5, 6, 7, 12, 13, 14, 15, 18, 19}


def test_a_part_without_rows_has_the_types_of_the_others() -> None:
    rows = ArrayDataset({"x": np.zeros((3, 2, 5), np.int32), "y": np.array(["a", "b", "c"])})
    for row_wise in (True, False):
        part = BatchPart(2, 3)
        batches = Batches(rows, 2, shuffle=False, row_wise=row_wise).part_of(part)
        for batch in batches.epoch(0):
            assert len(batch) == 0 and batch.feeds["x"].shape == (0, 2, 5)
            assert batch.feeds["x"].dtype == np.int32 and len(batch.feeds["y"]) == 0


def test_rows_that_depend_on_their_batch_are_made_from_all_of_it() -> None:
    def centre(feeds: dict[str, Any], epoch: int, positions: Any) -> dict[str, Any]:
        return {"x": feeds["x"] - feeds["x"].mean()}

    rows = ArrayDataset({"x": np.arange(10.0)})
    whole = Batches(rows, 4, transform=centre)
    parts = [whole.part_of(BatchPart(rank, 2)) for rank in range(2)]
    made = [list(each.epoch(0)) for each in parts]
    for number, batch in enumerate(whole.epoch(0)):
        joined = np.concatenate([each[number].feeds["x"] for each in made])
        np.testing.assert_array_equal(joined, batch.feeds["x"])


def test_batches_of_shards_are_cut_at_the_same_rows_on_any_number_of_processes() -> None:
    cuts = {
        BatchPart(rank, size, shards=4).of(10).start
        for size in (1, 2, 3, 4)
        for rank in range(size)
    }
    assert cuts == {0, 3, 6, 8}


def test_chosen_batches_come_in_the_order_asked_for() -> None:
    batches = Batches(ArrayDataset({"x": np.arange(7)}), 2, shuffle=False, row_wise=True)
    found = [batch.positions.tolist() for batch in batches.choose(0, [3, 1, 3])]
    assert found == [[6], [2, 3], [6]]
