"""Batches: a dataset's rows in batches, read ahead in threads, the same whenever they are asked."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from onward import settings
from onward.errors import DataError
from onward.runner.data import order as orders
from onward.runner.data.batch_part import BatchPart
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


@dataclass(slots=True)  # one is made for each step: frozen ones take longer to make
class DataBatch:
    """The columns of some rows, by name, and the positions of these rows in the dataset."""

    feeds: Feeds
    positions: Array
    of_all: int | None = None  # rows of the batch in all processes; None: it has no others

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def whole(self) -> int:
        """The rows of the batch, those of other processes included."""
        return len(self.positions) if self.of_all is None else self.of_all


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
        self._row_wise, self._part = row_wise, BatchPart()
        self._together = self._count_together() if row_wise else 1
        self._count = len(self._rows) if order is None else len(order(0))
        if not self._count:
            raise DataError("there are no rows to make batches of\ncheck the split, and the data")
        if self.drop_last and self._count < self.size:
            raise DataError(
                f"{self._count} rows do not fill one batch of {self.size}, and drop_last leaves "
                "incomplete ones out\nuse smaller batches, or drop_last=False"
            )
        whole, rest = divmod(self._count, self.size)
        self._length: int = whole + (rest > 0 and not self.drop_last)
        self.waited = 0.0  # seconds that consumers waited for batches

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return list(self._columns)

    @property
    def positions(self) -> Array:
        """The positions in the dataset that batches are made of."""
        return self._rows

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return self._length

    def part_of(self, part: BatchPart) -> Batches:
        """The same batches, of which one process has a part; it reads only its own rows.

        Where rows depend on the others of their batch (mixup, padding), it reads all of them.
        """
        found = copy.copy(self)
        found._part, found.waited = part, 0.0
        found._cache = None if self._cache is None else RowCache(len(self.dataset))
        return found

    def epoch(self, number: int, start: int = 0) -> Generator[DataBatch]:
        """The batches of an epoch, from batch `start` on; close the iterator to stop early."""
        settings.integer(0, len(self))("start", start)
        return self.choose(number, range(start, len(self)))

    def choose(self, number: int, chosen: Sequence[int]) -> Generator[DataBatch]:
        """Some batches of an epoch, by their places in it; close the iterator to stop early."""
        settings.integer(0)("epoch", number)
        rows = self._rows[self._order(number)]
        if len(rows) != self._count:
            raise DataError(f"order({number}) has {len(rows)} rows, but order(0) {self._count}")
        make = (
            (lambda group=chosen[at : at + self._together]: self._make_group(rows, group, number))
            for at in range(0, len(chosen), self._together)
        )
        # in groups, what is read ahead is at least as many batches
        ahead = self.ahead if self._together == 1 else 1
        # what is kept is only copied: less work than to hand it from thread to thread
        is_kept = self._cache is not None and self._cache.has_all(self._own_rows(rows, chosen))
        return self._timed(run_ahead(make, 0 if is_kept else self.threads, ahead))

    def _own_rows(self, rows: Array, chosen: Sequence[int]) -> Array:
        """The rows of this process in the chosen batches."""
        if self._part.size == 1 and len(chosen) == len(self):
            return rows
        return np.concatenate([rows[:0], *(self._rows_of(rows, each) for each in chosen)])

    def _rows_of(self, rows: Array, batch: int) -> Array:
        """The rows of this process in a batch."""
        whole = rows[batch * self.size : (batch + 1) * self.size]
        return whole if self._part.size == 1 else whole[self._part.of(len(whole))]

    def _default_order(self, epoch: int) -> Array:
        count = len(self._rows)
        return orders.positions(self.seed, epoch, count) if self.shuffle else np.arange(count)

    def _count_together(self) -> int:
        """The number of batches that are made at once: small ones cost more calls than work."""
        known = row_bytes([self.dataset.columns[name] for name in self._columns])
        if known is None:
            return 1
        return min(max(_GROUP_BYTES // max(known * self.size, 1), 1), _GROUP_BATCHES)

    def _make_group(self, rows: Array, chosen: Sequence[int], epoch: int) -> Iterator[DataBatch]:
        """Batches that are made at once."""
        if len(chosen) == 1:
            return iter([self._make_part(rows, chosen[0], epoch)])
        one_by_one = (self._make_part(rows, batch, epoch) for batch in chosen)
        if self._part.size == 1 and isinstance(chosen, range) and chosen.step == 1:
            joined = rows[chosen[0] * self.size : (chosen[-1] + 1) * self.size]
            parts = [joined[at : at + self.size] for at in range(0, len(joined), self.size)]
        else:
            parts = [self._rows_of(rows, batch) for batch in chosen]
            joined = np.concatenate(parts)
        if not len(joined):
            return one_by_one
        try:
            made = self._make(joined, epoch).feeds
        except Exception:  # so that the error comes in the turn of its batch
            return one_by_one
        of_all = repeat(None) if self._part.size == 1 else map(self._count_rows, chosen)
        # all at once: it takes longer one by one, between steps
        return iter([*map(DataBatch, _split(made, parts), parts, of_all)])

    def _make_part(self, rows: Array, batch: int, epoch: int) -> DataBatch:
        """This process's part of one batch; all rows are made where each depends on the others."""
        own = self._rows_of(rows, batch)
        if self._part.size == 1:
            return self._make(own, epoch)
        whole = rows[batch * self.size : (batch + 1) * self.size]
        # a part without rows has the columns and types of any row
        read = (own if len(own) else whole[:1]) if self._row_wise else whole
        taken = slice(len(own)) if self._row_wise else self._part.of(len(whole))
        made = self._make(read, epoch).feeds
        return DataBatch({name: feed[taken] for name, feed in made.items()}, own, len(whole))

    def _count_rows(self, batch: int) -> int:
        """The rows of a batch in all processes."""
        return min(self.size, self._count - batch * self.size)

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


def _split(feeds: Feeds, parts: Sequence[Array]) -> Iterator[Feeds]:
    """The feeds of each part of the rows."""
    size, names = len(parts[0]), tuple(feeds)
    if all(len(part) == size for part in parts):  # views, made in C
        shaped = [feed.reshape(len(parts), size, *feed.shape[1:]) for feed in feeds.values()]
        return (dict(zip(names, each)) for each in zip(*shaped))
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return (
        {name: feed[end - len(part) : end] for name, feed in feeds.items()}
        for part, end in zip(parts, ends)
    )


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
