"""ResultCache: the results of earlier runs with identical feeds, up to a number of bytes."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Key = tuple[Any, ...]


class ResultCache:
    """A least-recently-used cache of numpy results; safe to use from many threads.

    >>> cache = ResultCache(1000)
    >>> key = cache.key(None, {"x": np.zeros(3)})
    >>> cache.get(key) is None
    True
    >>> cache.put(key, [np.ones(3)])
    >>> cache.get(key)
    [array([1., 1., 1.])]
    >>> cache.hit_rate
    0.5
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes, self.hits, self.misses = limit, 0, 0, 0
        self._results: OrderedDict[Key, tuple[list[Any], int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def hit_rate(self) -> float:
        """The share of lookups that were found."""
        return self.hits / max(1, self.hits + self.misses)

    def key(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> Key | None:
        """The key of a call; None if a feed cannot be compared by its bytes."""
        parts: list[Any] = [tuple(names) if names else None]
        for name in sorted(feeds):
            feed = feeds[name]
            if not isinstance(feed, (np.ndarray, np.generic)) or feed.dtype.hasobject:
                return None
            data = np.ascontiguousarray(feed)
            digest = hashlib.blake2b(data.tobytes()).digest()
            parts.append((name, feed.dtype.str, feed.shape, digest))
        return tuple(parts)

    def get_or_compute(
        self,
        names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        compute: Callable[[], list[Any]],
    ) -> list[Any]:
        """The results of a call, computed and cached if they are not here."""
        key = self.key(names, feeds)
        if key is None:
            return compute()
        found = self.get(key)
        if found is None:
            found = compute()
            self.put(key, found)
        return found

    def get(self, key: Key) -> list[Any] | None:
        """Copies of the cached results, so that callers cannot change them."""
        with self._lock:
            found = self._results.get(key)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._results.move_to_end(key)
        return [np.copy(result) for result in found[0]]

    def put(self, key: Key, results: Sequence[Any]) -> None:
        """Cache results, and remove the least recently used ones that no longer fit."""
        if not all(isinstance(result, np.ndarray) for result in results):
            return
        size = sum(result.nbytes for result in results)
        if size > self.limit:
            return
        copies = [np.copy(result) for result in results]
        with self._lock:
            _, old = self._results.pop(key, (None, 0))
            self._results[key] = (copies, size)
            self.bytes += size - old
            while self.bytes > self.limit:
                _, (_, freed) = self._results.popitem(last=False)
                self.bytes -= freed
