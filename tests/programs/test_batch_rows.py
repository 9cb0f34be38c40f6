"""The rows of a batch by process and by logical shard."""

from __future__ import annotations

from onward.programs.batch_rows import even_part, rows_of_process


def test_every_row_belongs_to_one_process() -> None:
    for rows in range(14):
        for size in range(1, 6):
            for shards in (None, *range(1, 8)):  # also fewer shards than processes
                parts = [rows_of_process(rows, rank, size, shards) for rank in range(size)]
                assert [row for part in parts for row in part] == list(range(rows))


def test_parts_are_as_equal_as_possible() -> None:
    assert [len(even_part(5, 4, part)) for part in range(4)] == [2, 1, 1, 1]
    assert [len(even_part(2, 4, part)) for part in range(4)] == [1, 1, 0, 0]


def test_cuts_between_logical_shards_do_not_depend_on_the_number_of_processes() -> None:
    cuts = {even_part(10, 4, shard).start for shard in range(4)}
    for size in (1, 2, 3, 4):
        assert {rows_of_process(10, rank, size, 4).start for rank in range(size)} <= cuts
