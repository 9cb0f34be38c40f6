"""BatchPart: the rows of every batch that one of several processes trains on."""

from __future__ import annotations

from dataclasses import dataclass

from onward.programs.batch_rows import rows_of_process


@dataclass(frozen=True)
class BatchPart:
    """The part of process `rank` of `size`, with logical shards if there are `shards` of them.

    >>> [BatchPart(rank, 3).of(8) for rank in range(3)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
    >>> [BatchPart(rank, 3, shards=4).of(8) for rank in range(3)]
    [slice(0, 4, None), slice(4, 6, None), slice(6, 8, None)]
    """

    rank: int = 0
    size: int = 1
    shards: int | None = None

    def of(self, rows: int) -> slice:
        """The rows of this process in a batch of so many; it may have none."""
        own = rows_of_process(rows, self.rank, self.size, self.shards)
        return slice(own.start, own.stop)
