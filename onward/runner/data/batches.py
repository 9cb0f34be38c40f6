"""Batches: a dataset's rows in batches, read ahead in threads, the same whenever they are asked."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward import settings
from onward.errors import DataError
from onward.runner.data import order as orders
from onward.runner.data.dataset import (
    Array,
    Dataset,
    check_positions,
    choose_columns,
    row_bytes,
)
from onward.runner.data.row_cache import RowCache

_GROUP_BYTES, _GROUP_BATCHES = 1 << 20, 64  # of batches that are made at once

Feeds = Mapping[str, Array]
Transform = Callable[[dict[str, Array], int, Array], dict[str, Array]]  # feeds, epoch, positions


@dataclass(frozen=True)
class DataBatch:
    """The columns of some rows, by name, and the positions of these rows in the dataset."""

    feeds: Feeds
    positions: Array

    def __len__(self) -> int:
        return len(self.positions)


class Batches:
    """The batches of each epoch, as a pure function of the seed, the epoch and the batch's number.

    >>> from onward.runner.data.in_memory import ArrayDataset
    >>> batches = Batches(ArrayDataset({"x": np.arange(5)}), 2, shuffle=False)
    >>> [batch.feeds["x"].tolist() for batch in batches.epoch(0)]
    [[0, 1], [2, 3], [4]]
    >>> [batch.feeds["x"].tolist() for batch in batches.epoch(0, start=2)]
    [[4]]
    """

    def __init__(
        self,
        dataset: Dataset,
        size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        positions: Array | None = None,
        order: Callable[[int], Array] | None = None,
        columns: Sequence[str] | None = None,
        transform: Transform | None = None,
        threads: int = 1,
        ahead: int = 2,
        row_wise: bool = False,
        repeats: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Batches of `size` rows of `positions` (None: all rows).

        `order` gives, for an epoch's number, the places in `positions` to visit; None visits each
        once, in random order if `shuffle`. `transform(feeds, epoch, positions)` runs in the
        threads. `ahead` batches are read before they are needed; with 0 threads, none are.
        `row_wise` says that a row's feeds do not depend on the other rows of its batch: several
        small batches are then made at once. `repeats` says that they do not depend on the epoch,
        either: rows that fit into memory are then made once.
        """
        self.size: int = settings.integer(1)("Batches.size", size)
        self.seed: int = settings.integer()("Batches.seed", seed)
        self.threads: int = settings.integer(0)("Batches.threads", threads)
        self.ahead: int = settings.integer(1)("Batches.ahead", ahead)
        self.shuffle = settings.true_or_false("Batches.shuffle", shuffle)
        self.drop_last = settings.true_or_false("Batches.drop_last", drop_last)
        self.dataset, self._transform, self._clock = dataset, transform, clock
        self._rows = (
            np.arange(len(dataset))
            if positions is None
            else check_positions(positions, len(dataset), "the data")
        )
        self._columns = choose_columns(dataset.columns, columns, "the data")
        self._order = order or self._default_order
        self._cache = RowCache(len(dataset)) if row_wise and repeats else None
        self._together = self._count_together() if row_wise else 1
        self._count = len(self._rows) if order is None else len(order(0))
        if not self._count:
            raise DataError("there are no rows to make batches of\ncheck the split, and the data")
        if self.drop_last and self._count < self.size:
            raise DataError(
                f"{self._count} rows do not fill one batch of {self.size}, and drop_last leaves "
                "incomplete ones out\nuse smaller batches, or drop_last=False"
            )
        self.waited = 0.0  # seconds that consumers waited for batches

    @property
    def positions(self) -> Array:
        """The positions in the dataset that batches are made of."""
        return self._rows

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return self._count // self.size if self.drop_last else -(-self._count // self.size)

    def epoch(self, number: int, start: int = 0) -> Generator[DataBatch]:
        """The batches of an epoch, from batch `start` on; close the iterator to stop early."""
        settings.integer(0)("epoch", number)
        settings.integer(0, len(self))("start", start)
        rows = self._rows[self._order(number)]
        if len(rows) != self._count:
            raise DataError(f"order({number}) has {len(rows)} rows, but order(0) {self._count}")
        make = (
            (lambda first=first: self._make_group(rows, first, number))
            for first in range(start, len(self), self._together)
        )
        # in groups, what is read ahead is at least as many batches
        ahead = self.ahead if self._together == 1 else 1
        is_kept = self._cache is not None and self._cache.has_all(rows)
        # what is kept is only copied: less work than to hand it from thread to thread
        return self._timed(run_ahead(make, 0 if is_kept else self.threads, ahead))

    def _default_order(self, epoch: int) -> Array:
        count = len(self._rows)
        return orders.positions(self.seed, epoch, count) if self.shuffle else np.arange(count)

    def _count_together(self) -> int:
        """The number of batches that are made at once: small ones cost more calls than work."""
        known = row_bytes([self.dataset.columns[name] for name in self._columns])
        if known is None:
            return 1
        return min(max(_GROUP_BYTES // max(known * self.size, 1), 1), _GROUP_BATCHES)

    def _make_group(self, rows: Array, first: int, epoch: int) -> Iterator[DataBatch]:
        """Batches from `first` on, which are made at once."""
        last = min(first + self._together, len(self))
        parts = [rows[batch * self.size : (batch + 1) * self.size] for batch in range(first, last)]
        if len(parts) == 1:
            return iter([self._make(parts[0], epoch)])
        try:
            made = self._make(rows[first * self.size : last * self.size], epoch).feeds
        except Exception:  # one by one, so that the error comes in the turn of its batch
            return (self._make(part, epoch) for part in parts)
        starts = range(0, len(parts) * self.size, self.size)
        return iter(
            [
                DataBatch({name: feed[at : at + len(part)] for name, feed in made.items()}, part)
                for at, part in zip(starts, parts)
            ]
        )

    def _make(self, rows: Array, epoch: int) -> DataBatch:
        kept = None if self._cache is None else self._cache.get(rows)
        if kept is not None:
            return DataBatch(kept, rows)
        feeds = self.dataset.read(rows, self._columns)
        feeds = feeds if self._transform is None else self._transform(feeds, epoch, rows)
        if self._cache is not None:
            self._cache.put(rows, feeds)
        return DataBatch(feeds, rows)

    def _timed(self, groups: Generator[Iterator[DataBatch]]) -> Generator[DataBatch]:
        try:
            while True:
                asked = self._clock()
                group = next(groups, None)
                self.waited += self._clock() - asked
                if group is None:
                    return
                yield from group
        finally:
            groups.close()


def run_ahead(calls: Iterable[Callable[[], Any]], threads: int, ahead: int) -> Generator[Any]:
    """The results of calls, in order; up to `ahead` run in threads before they are asked for.

    An error reaches the consumer in its turn. When the iterator is closed, or the consumer is
    interrupted, calls that wait are dropped and those that run are waited for.

    >>> list(run_ahead([lambda: 1, lambda: 2, lambda: 3], threads=2, ahead=2))
    [1, 2, 3]
    """
    left: Iterator[Callable[[], Any]] = iter(calls)
    if not threads:
        yield from (call() for call in left)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="onward-data")
    try:
        running: deque[Future[Any]] = deque()
        for call in left:
            running.append(pool.submit(call))
            if len(running) > ahead:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
