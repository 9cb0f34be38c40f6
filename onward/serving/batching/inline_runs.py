"""Decide whether a model is quick enough to run in the event loop's own thread.

Handing a batch to a thread and back costs 50 us and more, and both threads then compete for the
interpreter. A run of a small model takes less, and delays other requests no longer than that.
"""

from __future__ import annotations

import math

_QUICK = 300e-6  # seconds of a batch: such a model may run in the loop's thread
_SLOW = 2e-3  # a batch that takes this long delays others
_MOST_DELAY = 20e-3  # seconds of slow batches lately, above which it ends
_INTERRUPTED = 5e-3  # that a batch counts at most if the thread hardly computed in it
_FORGET = 1 - 1 / 256  # the weight that a slow batch keeps after each quick one
_TRIALS = 16  # more quick batches than slow ones, before the first one runs there
_SLOW_TRIALS = 8  # quick batches that make up for one that is not quick
_MOST_TRIALS = 1 << 14


class InlineRuns:
    """Learns from the seconds of each batch; `is_on` says where the next one runs.

    A quick model takes long once in a while: the machine has other work too. With one batch of
    5 ms among 256, threads would cost more than they save; with four in a row, they are needed.

    >>> runs = InlineRuns()
    >>> for _ in range(16):
    ...     runs.observe(50e-6)
    >>> runs.observe(5e-3)
    >>> runs.is_on
    True
    >>> runs.observe(0.1)
    >>> runs.is_on
    False
    """

    def __init__(self) -> None:
        self.is_on = False
        self._quick, self._trials = 0, _TRIALS
        self._delay = 0.0
        self._inline = 0  # batches since it is on

    def observe(self, seconds: float, computed: float = math.inf) -> None:
        """Learn from a batch: joining, running and splitting.

        `computed`: the processor time of the loop's thread, if the batch ran there.
        """
        if not self.is_on:
            is_quick = seconds <= _QUICK
            self._quick = self._quick + 1 if is_quick else max(0, self._quick - _SLOW_TRIALS)
            if self._quick >= self._trials:
                self.is_on, self._delay, self._inline = True, 0.0, 0
            return
        self._inline += 1
        if seconds <= _SLOW:
            self._delay *= _FORGET
        else:
            self._delay += seconds if computed > seconds / 2 else min(seconds, _INTERRUPTED)
        if self._delay > _MOST_DELAY:
            self.is_on, self._quick = False, 0
            is_rare = self._inline > _MOST_TRIALS
            self._trials = _TRIALS if is_rare else min(4 * self._trials, _MOST_TRIALS)
