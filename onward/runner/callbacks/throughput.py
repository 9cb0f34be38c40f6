"""Throughput: samples per second over the last steps, the share of waiting for data, time left."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from onward.measure.memory import resident_memory

_WINDOW = 50  # steps


class Throughput:
    """The speed of the last steps. Time that was spent on evaluation is not counted.

    >>> times = iter([0.0, 1.0, 2.0])
    >>> speed = Throughput(clock=lambda: next(times))
    >>> speed.start(waited=0.0)
    >>> speed.add(samples=32, waited=0.25)
    >>> speed.add(samples=32, waited=0.5)
    >>> speed.samples_per_second, speed.data_wait, speed.time_left(10)
    (32.0, 0.25, 10.0)
    """

    def __init__(self, clock: Callable[[], float], window: int = _WINDOW) -> None:
        self._clock = clock
        self._points: deque[tuple[float, int, float]] = deque(maxlen=window + 1)
        self._excluded = 0.0  # seconds of evaluations so far
        self._began = 0.0

    def start(self, waited: float) -> None:
        """Begin; `waited` are the seconds that were waited for data before."""
        self._points.clear()
        self._excluded, self._began = 0.0, self._clock()
        self._points.append((self._began, 0, waited))

    def add(self, samples: int, waited: float) -> None:
        """Count a step; `waited` are the seconds that were waited for data since the beginning."""
        total = samples + (self._points[-1][1] if self._points else 0)
        self._points.append((self._clock() - self._excluded, total, waited))

    def exclude(self, seconds: float) -> None:
        """Leave out the time of an evaluation, which lies after the last step."""
        self._excluded += seconds

    @property
    def samples_per_second(self) -> float:
        """NaN before the first step."""
        return self._rate(1)

    @property
    def data_wait(self) -> float:
        """The share of time in which the loop waited for data; NaN before the first step."""
        return min(max(self._rate(2), 0.0), 1.0) if self._seconds else math.nan

    def time_left(self, steps: int) -> float:
        """Seconds of so many further steps and of their evaluations; NaN before the first step."""
        if not self._seconds:
            return math.nan
        trained = self._points[-1][0] - self._began
        evaluating = self._excluded / trained if trained > 0 else 0.0
        return steps * self._seconds / (len(self._points) - 1) * (1 + evaluating)

    @property
    def _seconds(self) -> float:
        """The length of the window in time."""
        return self._points[-1][0] - self._points[0][0] if len(self._points) > 1 else 0.0

    def _rate(self, place: int) -> float:
        """How much one of the counts grew in each second of the window."""
        if not self._seconds:
            return math.nan
        return (self._points[-1][place] - self._points[0][place]) / self._seconds


class MemoryReader:
    """Bytes of this process that are in memory; asking the system takes a tenth of a short step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, age: float = 1.0) -> None:
        """What was read less than `age` seconds ago is not read again."""
        self._clock, self._age = clock, age
        self._read: tuple[float, float] | None = None  # when, and how many

    def now(self) -> float:
        """NaN where the system does not report it."""
        if not resident_memory.MEASURABLE:
            return math.nan
        moment = self._clock()
        if self._read is None or moment - self._read[0] >= self._age:
            self._read = moment, float(resident_memory.resident())
        return self._read[1]


def show_time(seconds: float) -> str:
    """A duration in hours, minutes and seconds.

    >>> show_time(75), show_time(3723), show_time(float("nan"))
    ('1:15', '1:02:03', '-')
    """
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
