"""When requests start: pure functions of a plan and of the time."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np

from onward.serving.load_test.load_plan import LoadPlan
from onward.serving.requests import Array


def arrival_times(plan: LoadPlan) -> Array:
    """The times of all requests of an open loop, in seconds from the start."""
    assert plan.rate is not None
    length = plan.total_seconds
    if plan.arrivals == "constant":
        return np.arange(plan.offset, length, 1 / plan.rate)
    rng = np.random.default_rng(plan.seed)
    # enough draws that their sum passes the end; at 6 standard deviations it always does
    expected = plan.rate * length
    gaps = rng.exponential(1 / plan.rate, int(expected + 6 * expected**0.5 + 10))
    times = np.cumsum(gaps)
    return times[times < length]


class Pace(Protocol):
    """Decides which request a free connection sends."""

    def next_start(self, now: float) -> float | None:
        """The intended start of the next request; None: there is none yet."""
        ...

    @property
    def is_over(self) -> bool: ...

    def stop(self) -> None: ...


class ClosedPace:
    """A free connection sends at once, until the end."""

    def __init__(self, end: float) -> None:
        self._end = end
        self._stopped = False

    def next_start(self, now: float) -> float | None:
        self._stopped = self._stopped or now >= self._end
        return None if self._stopped else now

    @property
    def is_over(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        self._stopped = True


class OpenPace:
    """Requests start at given times; one that finds no free connection waits, and its time runs."""

    def __init__(self, times: Array, start: float) -> None:
        self._times = times + start
        self._arrived = 0
        self._waiting: deque[float] = deque()
        self._stopped = False

    def arrive(self, now: float) -> int:
        """Let the requests whose time has come wait for a connection: how many wait."""
        if not self._stopped:
            arrived = int(np.searchsorted(self._times, now, side="right"))
            self._waiting.extend(self._times[self._arrived : arrived].tolist())
            self._arrived = max(arrived, self._arrived)
        return len(self._waiting)

    def next_start(self, now: float) -> float | None:
        return self._waiting.popleft() if self._waiting else None

    def next_arrival(self) -> float | None:
        """The time of the first request that has not arrived."""
        if self._stopped or self._arrived >= len(self._times):
            return None
        return float(self._times[self._arrived])

    @property
    def is_over(self) -> bool:
        return self.next_arrival() is None and not self._waiting

    def stop(self) -> None:
        """No further request starts; those that wait are dropped."""
        self._stopped = True
        self._waiting.clear()
