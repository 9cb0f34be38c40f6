"""Feeds that are computed from other feeds: which rows a packed graph keeps.

    gather   the rows that are kept, filled up to a bucket        (rows kept)
    restore  for each row its place among them, or their number   (all rows)

A row is a token of a batch: row (b, t) of feeds of shape (batch, time). See
passes/token_functions.py for what reads them. Where a batch does not have the property that makes
it exact to leave rows out (see `PackedRows`), all rows are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BUCKET = 512  # rows
_PARTS = 8  # a bucket is filled by at most one part in so many


@dataclass(frozen=True, kw_only=True)
class CountedLabels:
    """The labels that count in a loss: those of `feed` that are not `ignored`.

    Row (b, t) has label (b, t + `shift`); there is none beyond the end, and the row is ignored.
    """

    feed: str
    ignored: int
    shift: int = 0

    def rows(self, labels: Array) -> Array:
        """Whether each row has a label that counts: (batch, time), bool."""
        counted: Array = labels != self.ignored
        if not self.shift:
            return counted
        kept: Array = np.zeros_like(counted)
        if self.shift > 0:
            kept[:, : -self.shift] = counted[:, self.shift :]
        else:
            kept[:, -self.shift :] = counted[:, : self.shift]
        return kept


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """Two inputs of the train graph that say which rows are kept.

    Attributes:
        gather, restore: their names
        mask: the feed that is 1 for a token and 0 for padding; None: rows are kept by their label
        labels: without a mask, whose rows are kept; with one, whose rows must be tokens
        positions: where every sample must have a token, such as 0; negative from the end
        bucket: the number of kept rows is rounded up to a multiple, or of less for few rows
    """

    gather: str
    restore: str
    mask: str | None = None
    labels: tuple[CountedLabels, ...] = ()
    positions: tuple[int, ...] = ()
    bucket: int = BUCKET

    @property
    def sources(self) -> tuple[str, ...]:
        """The feeds that are read."""
        found = () if self.mask is None else (self.mask,)
        return (*found, *(each.feed for each in self.labels))

    def kept_rows(self, feeds: Mapping[str, Array]) -> Array | None:
        """Whether each row is kept: (batch, time), bool; None: all rows are.

        All are where a sample has no token: attention may then read what its mask hides.

        >>> rows = PackedRows(gather="g", restore="r", mask="mask", positions=(0,))
        >>> rows.kept_rows({"mask": np.array([[1, 1, 0], [1, 0, 0]])}).sum()
        np.int64(3)
        >>> rows.kept_rows({"mask": np.array([[0, 1, 1], [1, 0, 0]])})  # no token at position 0
        """
        counted = [each.rows(feeds[each.feed]) for each in self.labels]
        if self.mask is None:
            return counted[0]
        mask = feeds[self.mask]
        tokens: Array = mask == 1
        if not (tokens | (mask == 0)).all() or not tokens.any(axis=1).all():
            return None
        if any(each.shape != mask.shape for each in counted):
            return None
        if any((each & ~tokens).any() for each in counted):
            return None
        if any(not -mask.shape[1] <= p < mask.shape[1] for p in self.positions):
            return None
        return tokens if all(tokens[:, p].all() for p in self.positions) else None

    def share(self, feeds: Mapping[str, Array]) -> float:
        """The share of rows that a batch leaves out; rows that fill a bucket are not left out.

        >>> rows = PackedRows(gather="g", restore="r", mask="mask")
        >>> rows.share({"mask": np.array([[1, 0], [1, 1]])})
        0.25
        """
        computed = self.compute(feeds)
        return 1.0 - computed[self.gather].size / computed[self.restore].size

    def compute(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The two inputs for these feeds.

        >>> rows = PackedRows(gather="g", restore="r", mask="mask")
        >>> {n: x.tolist() for n, x in rows.compute({"mask": np.array([[1, 0], [1, 1]])}).items()}
        {'g': [0, 2, 3], 'r': [0, 3, 1, 2]}
        """
        kept = self.kept_rows(feeds)
        if kept is None:
            count = feeds[self.sources[0]].size
            everything = np.arange(count, dtype=np.int64)
            return {self.gather: everything, self.restore: everything}
        gather, restore = pack_indices(kept.reshape(-1), self.bucket, repeats=self.mask is not None)
        return {self.gather: gather, self.restore: restore}


def packed_rows_from_json(plain: Mapping[str, Any]) -> PackedRows:
    """PackedRows from their fields, the labels as dictionaries.

    >>> import dataclasses
    >>> rows = PackedRows(gather="g", restore="r", labels=(CountedLabels(feed="y", ignored=-1),))
    >>> packed_rows_from_json(dataclasses.asdict(rows)) == rows
    True
    """
    labels = tuple(CountedLabels(**each) for each in plain["labels"])
    return PackedRows(**{**plain, "labels": labels, "positions": tuple(plain["positions"])})


def pack_indices(kept: Array, bucket: int, *, repeats: bool) -> tuple[Array, Array]:
    """`gather` and `restore` of rows that are kept or not.

    The bucket is filled with the first row that is kept (`repeats`), or the first that is not.

    >>> pack_indices(np.array([False, True, True]), 4, repeats=True)
    (array([1, 2]), array([2, 0, 1]))
    """
    rows = np.flatnonzero(kept)
    count = len(rows)
    size = bucket_size(count, kept.size, bucket)
    gather = np.empty(size, np.int64)
    gather[:count] = rows
    if size > count:
        gather[count:] = rows[0] if repeats and count else int(np.argmin(kept))
    restore = np.full(kept.size, size, np.int64)
    restore[rows] = np.arange(count)
    return gather, restore


def bucket_size(count: int, most: int, bucket: int = BUCKET) -> int:
    """How many rows are computed where `count` of `most` are kept.

    Rounded up to a multiple of the bucket, or of a smaller power of two so that at most one part
    in eight is added: a graph is compiled for few sizes.

    >>> bucket_size(6400, 16384), bucket_size(100, 4096), bucket_size(9, 10), bucket_size(0, 8)
    (6656, 104, 9, 1)
    """
    step = 1
    while step * 2 <= bucket and count >= step * 2 * _PARTS:
        step *= 2
    return min(most, max(1, -(-count // step) * step))


class DerivedFeeds:
    """Computes the inputs of a graph that are derived from its feeds.

    `names` are the graph's inputs; None: all that are derived.
    """

    def __init__(self, derived: Iterable[PackedRows], names: Collection[str] | None = None) -> None:
        self.rows = [
            rows
            for rows in derived
            if names is None or rows.gather in names or rows.restore in names
        ]
        self._names = names

    def compute(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The derived inputs for these feeds."""
        found: dict[str, Array] = {}
        for rows in self.rows:
            found |= rows.compute(feeds)
        return {n: x for n, x in found.items() if self._names is None or n in self._names}
