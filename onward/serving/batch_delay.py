"""How long a batch waits for more requests: a fixed time, or learned from latency and arrivals."""

from __future__ import annotations

import math

_FORGET = 0.98  # the weight that a measurement keeps after each later one
_GAP_WEIGHT = 0.1  # of the latest gap between arrivals
_TIMER = 1e-3  # seconds: an event loop's timers are not finer


class FixedDelay:
    """Wait this long after the oldest request's arrival."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def observe_arrival(self, now: float) -> None:
        """Learns nothing."""

    def observe_run(self, rows: int, seconds: float) -> None:
        """Learns nothing."""

    def start_time(self, rows: int, oldest: float, now: float) -> float:
        """When a batch whose oldest request arrived at `oldest` should start."""
        return oldest + self.seconds


class LatencyLine:
    """seconds = fixed + per_row * rows, fitted to the latest runs by least squares."""

    def __init__(self) -> None:
        self.fixed, self.per_row = 0.0, 0.0
        self._n = self._x = self._xx = self._y = self._xy = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Add one run."""
        self._n = self._n * _FORGET + 1
        self._x = self._x * _FORGET + rows
        self._xx = self._xx * _FORGET + rows * rows
        self._y = self._y * _FORGET + seconds
        self._xy = self._xy * _FORGET + rows * seconds
        mean_x, mean_y = self._x / self._n, self._y / self._n
        variance = self._xx / self._n - mean_x * mean_x
        if variance < 1e-6 * mean_x * mean_x:  # one size only: the share of a row is not known
            self.fixed, self.per_row = 0.0, mean_y / max(1.0, mean_x)
            return
        slope = (self._xy / self._n - mean_x * mean_y) / variance
        self.per_row = min(max(slope, 0.0), mean_y / mean_x)
        self.fixed = mean_y - self.per_row * mean_x


class LearnedDelay:
    """Wait only where the model's own latency makes it worth it.

    With a gap g to the next arrival and a run of n rows that takes a + b n, waiting for one more
    costs each of the n rows g + b, and saves the newcomer a - g. So a batch waits while
    n (g + b) < a - g, never longer than a, and not if the next arrival is late. A lone client's
    gap is longer than its run, so it never waits.
    """

    def __init__(self) -> None:
        self.latency = LatencyLine()
        self._log_gap = math.inf  # the mean of logarithms: a pause between bursts weighs little
        self._last_arrival = -math.inf

    @property
    def gap(self) -> float:
        """Seconds until the next arrival, as expected from the latest ones."""
        return math.exp(self._log_gap) if self._log_gap < 700 else math.inf

    def observe_arrival(self, now: float) -> None:
        """Learn from a request that arrives now."""
        gap = now - self._last_arrival
        self._last_arrival = now
        if gap == math.inf:
            return
        log_gap = math.log(max(gap, 1e-6))
        if self._log_gap == math.inf:
            self._log_gap = log_gap
        else:
            self._log_gap += _GAP_WEIGHT * (log_gap - self._log_gap)

    def observe_run(self, rows: int, seconds: float) -> None:
        """Learn from a batch that ran."""
        if rows:
            self.latency.observe(rows, seconds)

    def start_time(self, rows: int, oldest: float, now: float) -> float:
        """When a batch of these rows should start."""
        fixed = self.latency.fixed
        if fixed <= _TIMER:  # a timer would take longer than waiting can save
            return now
        gap = max(self.gap, _TIMER)
        if rows * (gap + self.latency.per_row) >= fixed - gap:
            return now
        return min(oldest + fixed, self._last_arrival + 2 * gap)
