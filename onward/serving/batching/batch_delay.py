"""How long a batch waits for more requests: a fixed time, or learned from latency and arrivals."""

from __future__ import annotations

import math

_FORGET = 0.98  # the weight that a measurement keeps after each later one
_MOST_TIMES = 8.0  # a run that takes longer than so many times what is expected counts as this
_ENOUGH = 8.0  # runs, before anything is expected
_GAP_WEIGHT = 0.1  # of the latest gap between arrivals
_SHARE_WEIGHT = 0.2  # of the latest share of clients that returned
_RETURN_WINDOW = 0.25  # of the fixed part of a run: how long returning clients are waited for
_TIMER = 1e-3  # seconds: an event loop's timers are not finer


class FixedDelay:
    """Wait this long after the oldest request's arrival."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def observe_arrival(self, now: float) -> None:
        """Learns nothing."""

    def observe_run(self, requests: int, rows: int, seconds: float, now: float) -> None:
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
        """Add one run. One request of an unusual shape must not delay those that follow."""
        if self._n >= _ENOUGH:
            expected = max(self._y / self._n, self.fixed + self.per_row * rows)
            seconds = min(seconds, _MOST_TIMES * expected)
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
    """Wait only where the model's own latency, a + b n for n rows, makes it worth it.

    For the next request: with a gap g to it, waiting costs each of n rows g + b, and saves that
    request a - g. So a batch waits while n (g + b) < a - g, and not if the next one is late.

    For clients that were just answered: those that send their next request at once would find the
    instance busy, and two groups of clients would alternate, each with half of a batch. If m of
    them are expected within a / 4, waiting saves about a m / (n + m).

    With one client there is no wait: no other request can arrive.
    """

    def __init__(self) -> None:
        self.latency = LatencyLine()
        self._log_gap = math.inf  # the mean of logarithms: a pause between bursts weighs little
        self._last_arrival = self._last_answer = -math.inf
        self._answered = self._returned = 0  # requests of the last batch; arrivals soon after it
        self._return_share = 0.0  # of the clients that were answered, those that soon ask again

    @property
    def gap(self) -> float:
        """Seconds until the next arrival, as expected from the latest ones."""
        return math.exp(self._log_gap) if self._log_gap < 700 else math.inf

    def observe_arrival(self, now: float) -> None:
        """Learn from a request that arrives now."""
        gap = now - self._last_arrival
        self._last_arrival = now
        if gap == math.inf or self.latency.fixed <= _TIMER:  # waiting cannot save anything
            return
        if now <= self._last_answer + _RETURN_WINDOW * self.latency.fixed:
            self._returned += 1
        log_gap = math.log(max(gap, 1e-6))
        if self._log_gap == math.inf:
            self._log_gap = log_gap
        else:
            self._log_gap += _GAP_WEIGHT * (log_gap - self._log_gap)

    def observe_run(self, requests: int, rows: int, seconds: float, now: float) -> None:
        """Learn from a batch that is answered now."""
        if rows:
            self.latency.observe(rows, seconds)
        if self._answered:
            share = min(1.0, self._returned / self._answered)
            self._return_share += _SHARE_WEIGHT * (share - self._return_share)
        self._answered, self._returned, self._last_answer = requests, 0, now

    def start_time(self, rows: int, oldest: float, now: float) -> float:
        """When a batch of these rows should start."""
        fixed = self.latency.fixed
        if fixed <= _TIMER:  # a timer would take longer than waiting can save
            return now
        per_row = self.latency.per_row
        missing = self._return_share * self._answered - self._returned
        until = self._last_answer + max(_TIMER, _RETURN_WINDOW * fixed)
        if missing >= 0.5 and now < until:
            saves_much = 2 * fixed > per_row * (rows + missing)  # else waiting only raises p99
            if saves_much and until - now < fixed * missing / (rows + missing):
                return until
        gap = max(self.gap, _TIMER)
        if rows * (gap + per_row) >= fixed - gap:
            return now
        return min(oldest + fixed, self._last_arrival + 2 * gap)
