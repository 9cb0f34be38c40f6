"""RowCache: feeds of rows that were made before, in memory, so that later epochs only copy them."""

from __future__ import annotations

import numpy as np

from onward.runner.data.dataset import Array

LIMIT = 256 << 20  # bytes


class RowCache:
    """Feeds by position; keeps nothing where all rows would take more than `limit` bytes.

    Rows are kept when they are first made, in arrays whose pages the system gives when they are
    written. Threads may share it.

    >>> cache = RowCache(rows=4)
    >>> cache.put(np.array([2]), {"x": np.array([[5.0, 6.0]])})
    >>> cache.get(np.array([2]))["x"].tolist(), cache.get(np.array([2, 3]))
    ([[5.0, 6.0]], None)
    """

    def __init__(self, rows: int, limit: int = LIMIT) -> None:
        self._limit = limit
        self._is_known = np.zeros(rows, bool)
        self._arrays: dict[str, Array] = {}
        self._is_off = False

    def has_all(self, positions: Array) -> bool:
        """Whether the feeds of all these rows are kept."""
        return not self._is_off and bool(self._arrays) and bool(self._is_known[positions].all())

    def get(self, positions: Array) -> dict[str, Array] | None:
        """The feeds of these rows; None unless all were kept."""
        if not self.has_all(positions):
            return None
        # positions were checked: take is twice as fast as an index
        arrays = self._arrays.items()
        return {name: np.take(array, positions, axis=0, mode="clip") for name, array in arrays}

    def put(self, positions: Array, feeds: dict[str, Array]) -> None:
        """Keep the feeds of these rows."""
        if self._is_off or not len(positions):
            return
        if not self._arrays:
            self._allocate(len(positions), feeds)
        if not self._fits(len(positions), feeds):
            self._is_off, self._arrays = True, {}  # rows of different sizes: nothing is kept
            return
        for name, feed in feeds.items():
            self._arrays[name][positions] = feed
        self._is_known[positions] = True  # last: another thread reads what is known

    def _allocate(self, count: int, feeds: dict[str, Array]) -> None:
        dense = all(feed.ndim and len(feed) == count for feed in feeds.values())
        size = sum(feed.nbytes // count for feed in feeds.values()) * len(self._is_known)
        if dense and size <= self._limit and not any(f.dtype.hasobject for f in feeds.values()):
            rows = len(self._is_known)
            arrays = {name: np.empty((rows, *f.shape[1:]), f.dtype) for name, f in feeds.items()}
            self._arrays = arrays

    def _fits(self, count: int, feeds: dict[str, Array]) -> bool:
        return feeds.keys() == self._arrays.keys() and all(
            feed.shape == (count, *self._arrays[name].shape[1:])
            and feed.dtype == self._arrays[name].dtype
            for name, feed in feeds.items()
        )
