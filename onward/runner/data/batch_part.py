"""BatchPart: the rows of every batch that one of several processes trains on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchPart:
    """The part of process `rank` of `size`: rows in a run, the first processes have one more.

    With `shards`, a batch is first cut into so many parts, of which each process has a run: where
    these cuts are does not depend on the number of processes.

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
        shards = self.size if self.shards is None else self.shards
        first, last = (_start(shards, self.size, rank) for rank in (self.rank, self.rank + 1))
        return slice(_start(rows, shards, first), _start(rows, shards, last))


def _start(count: int, parts: int, part: int) -> int:
    """The first of `count` things that is in a part, if the first parts have one more.

    >>> [_start(8, 3, part) for part in range(4)]
    [0, 3, 6, 8]
    """
    each, more = divmod(count, parts)
    return part * each + min(part, more)
