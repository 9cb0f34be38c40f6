"""The rows of a batch that belong to a process, and to a logical shard."""

from __future__ import annotations


def even_part(count: int, parts: int, part: int) -> range:
    """Part `part` of `count` things, in a run: parts are as equal as possible, longer ones first.

    >>> [even_part(8, 3, part) for part in range(3)]
    [range(0, 3), range(3, 6), range(6, 8)]
    """
    each, longer = divmod(count, parts)
    start = part * each + min(part, longer)
    return range(start, start + each + (part < longer))


def rows_of_process(rows: int, rank: int, size: int, logical_shards: int | None = None) -> range:
    """The rows of a batch that a process trains on; it may have none.

    With `logical_shards`, a batch is first cut into so many parts, of which each process has a run:
    where these cuts are does not depend on the number of processes.

    >>> rows_of_process(10, rank=1, size=3), rows_of_process(10, rank=0, size=3, logical_shards=4)
    (range(4, 7), range(0, 6))
    """
    shards = size if logical_shards is None else logical_shards
    own = even_part(shards, size, rank)
    if not own:
        return range(rows, rows)
    first, last = (even_part(rows, shards, shard) for shard in (own[0], own[-1]))
    return range(first.start, last.stop)
