"""Decide whether a model is quick enough to run in the event loop's own thread.

Handing a batch to a thread and back costs 50 us and more, and both threads then compete for the
interpreter. A run of a small model takes less, and delays other requests no longer than that.
"""

from __future__ import annotations

_QUICK = 300e-6  # seconds of a batch: such a model may run in the loop's thread
_SLOW = 2e-3  # one batch that takes this long ends it
_TRIALS = 16  # quick batches in a row, before the first one runs there
_MOST_TRIALS = 1 << 14


class InlineRuns:
    """Learns from the seconds of each batch; `is_on` says where the next one runs.

    >>> runs = InlineRuns()
    >>> for _ in range(16):
    ...     runs.observe(50e-6)
    >>> runs.is_on
    True
    >>> runs.observe(0.1)
    >>> runs.is_on
    False
    """

    def __init__(self) -> None:
        self.is_on = False
        self._quick, self._trials = 0, _TRIALS

    def observe(self, seconds: float) -> None:
        """Learn from a batch: joining, running and splitting."""
        if self.is_on:
            if seconds > _SLOW:
                self.is_on, self._quick = False, 0
                self._trials = min(4 * self._trials, _MOST_TRIALS)  # it is not always quick
        elif seconds > _QUICK:
            self._quick = 0
        else:
            self._quick += 1
            self.is_on = self._quick >= self._trials
