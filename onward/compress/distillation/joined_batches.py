"""Join small batches into larger ones to learn from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from onward.compress.calibration import Feeds, Labelled

ROWS = 32  # of a batch to learn from, if the user gives no number


def join_batches(batches: Iterable[Labelled], rows: int) -> Iterator[Labelled]:
    """Consecutive batches as one of about this many rows, where their shapes allow it."""
    waiting: list[Labelled] = []
    for batch in batches:
        if waiting and not _can_join(waiting[0], batch):
            yield joined(waiting)
            waiting = []
        waiting.append(batch)
        if sum(count_rows(each[0]) for each in waiting) >= rows:
            yield joined(waiting)
            waiting = []
    if waiting:
        yield joined(waiting)


def count_rows(feeds: Feeds) -> int:
    """The number of rows of a batch."""
    return max((len(feed) for feed in feeds.values() if np.ndim(feed)), default=1)


def joined(batches: Sequence[Labelled]) -> Labelled:
    """Batches of the same shapes as one."""
    if len(batches) == 1:
        return batches[0]
    feeds = {name: np.concatenate([each[0][name] for each in batches]) for name in batches[0][0]}
    targets = [np.atleast_1d(each[1]) for each in batches if each[1] is not None]
    return feeds, np.concatenate(targets) if targets else None


def _can_join(a: Labelled, b: Labelled) -> bool:
    if set(a[0]) != set(b[0]) or (a[1] is None) != (b[1] is None):
        return False
    pairs = [(a[0][name], b[0][name]) for name in a[0]]
    return all(
        np.ndim(x) > 0 and np.shape(x)[1:] == np.shape(y)[1:] and np.ndim(x) == np.ndim(y)
        for x, y in pairs
    )
