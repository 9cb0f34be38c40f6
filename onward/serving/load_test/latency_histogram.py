"""Latencies counted in buckets of equal relative width: any number of them in little memory."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

_PER_OCTAVE = 64  # buckets between a latency and its double: each is 1.1 % wide
_SMALLEST = 1e-6
_BUCKETS = 36 * _PER_OCTAVE  # up to 19 hours
_FOLD_AT = 1 << 16

PERCENTILES = (50.0, 90.0, 99.0, 99.9)


class LatencyHistogram:
    """Counts of latencies. Percentiles are right within 0.6 %; minimum, maximum and mean exactly.

    >>> latencies = LatencyHistogram()
    >>> latencies.add_many([0.001, 0.002, 0.004])
    >>> round(latencies.percentile(50), 4), latencies.count, latencies.maximum
    (0.002, 3, 0.004)
    """

    def __init__(self) -> None:
        self._recent: array[float] = array("d")  # not yet in buckets: to append is quick
        self._buckets = np.zeros(_BUCKETS, np.int64)
        self._count, self._sum = 0, 0.0
        self._minimum, self._maximum = float("inf"), 0.0

    def add(self, seconds: float) -> None:
        self._recent.append(seconds)
        if len(self._recent) >= _FOLD_AT:
            self._fold()

    def add_many(self, seconds: Any) -> None:
        for each in seconds:
            self.add(each)

    def _fold(self) -> None:
        if not self._recent:
            return
        times = np.frombuffer(self._recent, np.float64).copy()
        self._recent = array("d")
        places = np.log2(np.maximum(times, _SMALLEST) / _SMALLEST) * _PER_OCTAVE
        self._buckets += np.bincount(
            np.minimum(places.astype(np.int64), _BUCKETS - 1), minlength=_BUCKETS
        )
        self._count += len(times)
        self._sum += float(times.sum())
        self._minimum = min(self._minimum, float(times.min()))
        self._maximum = max(self._maximum, float(times.max()))

    @property
    def count(self) -> int:
        return self._count + len(self._recent)

    @property
    def maximum(self) -> float:
        self._fold()
        return self._maximum

    @property
    def minimum(self) -> float:
        self._fold()
        return self._minimum if self._count else 0.0

    @property
    def mean(self) -> float:
        self._fold()
        return self._sum / self._count if self._count else 0.0

    def percentile(self, percent: float) -> float:
        """The smallest latency that so many percent do not exceed; 0 without any."""
        self._fold()
        if not self._count:
            return 0.0
        rank = max(1, int(np.ceil(percent / 100 * self._count - 1e-9)))
        if rank >= self._count:
            return self._maximum
        place = int(np.searchsorted(np.cumsum(self._buckets), rank))
        middle = _SMALLEST * 2 ** ((place + 0.5) / _PER_OCTAVE)
        return float(min(max(middle, self._minimum), self._maximum))

    def coarse(self, bars: int) -> list[tuple[float, float, int]]:
        """The counts from the minimum to the maximum, in at most so many bars: (from, to, n)."""
        self._fold()
        used = np.flatnonzero(self._buckets)
        if not len(used):
            return []
        first, last = int(used[0]), int(used[-1])
        width = -(-(last - first + 1) // bars)
        found = []
        for place in range(first, last + 1, width):
            low = _SMALLEST * 2 ** (place / _PER_OCTAVE)
            high = _SMALLEST * 2 ** ((place + width) / _PER_OCTAVE)
            found.append((low, high, int(self._buckets[place : place + width].sum())))
        return found

    def merge(self, other: LatencyHistogram) -> None:
        """Add the counts of another histogram."""
        self._fold()
        other._fold()
        self._buckets += other._buckets
        self._count += other._count
        self._sum += other._sum
        self._minimum = min(self._minimum, other._minimum)
        self._maximum = max(self._maximum, other._maximum)

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON; the buckets as pairs of place and count."""
        self._fold()
        used = np.flatnonzero(self._buckets)
        pairs = [[int(place), int(self._buckets[place])] for place in used]
        return {
            "buckets": pairs,
            "sum": self._sum,
            "minimum": self.minimum,
            "maximum": self._maximum,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LatencyHistogram:
        found = cls()
        for place, count in data["buckets"]:
            found._buckets[place] = count
        found._count = int(found._buckets.sum())
        found._sum, found._maximum = data["sum"], data["maximum"]
        found._minimum = data["minimum"] if found._count else float("inf")
        return found
