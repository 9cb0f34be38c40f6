"""Deadlines: one thread of the process stops the runs that exceed their time limit."""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from onward.errors import DeadlineExceeded, OptionError
from onward.providers.options import RunOptions, SessionOptions

T = TypeVar("T")
_MAX_WAIT = 3600.0  # seconds; a condition cannot wait for an infinite time


class TimedCall:
    """A call that is made at a given time, unless it is cancelled first."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.fired = self.cancelled = False
        self._call, self._lock = call, threading.Lock()

    def fire(self) -> None:
        with self._lock:
            if not self.cancelled:
                self.fired = True
                self._call()

    def cancel(self) -> bool:
        """Return whether it was too late: the call has been made. Otherwise it never will be."""
        with self._lock:
            self.cancelled = True
        return self.fired


class Watchdog:
    """A heap of timed calls and the one thread that makes them."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._calls: list[tuple[float, int, TimedCall]] = []
        self._number = count()
        self._thread: threading.Thread | None = None
        self._sweep_at = 1024  # number of calls at which cancelled ones are removed

    def after(self, seconds: float, call: Callable[[], None]) -> TimedCall:
        """Make the call, which must be short, after so many seconds."""
        timed = TimedCall(call)
        entry = (time.monotonic() + seconds, next(self._number), timed)
        with self._changed:
            if len(self._calls) >= self._sweep_at:
                self._calls = [each for each in self._calls if not each[2].cancelled]
                heapq.heapify(self._calls)
                self._sweep_at = max(1024, 2 * len(self._calls))
            heapq.heappush(self._calls, entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="onward-watchdog")
                self._thread.daemon = True
                self._thread.start()
            elif self._calls[0] is entry:
                self._changed.notify()
        return timed

    def _watch(self) -> None:
        while True:
            with self._changed:
                while self._calls and self._calls[0][2].cancelled:
                    heapq.heappop(self._calls)
                wait = self._calls[0][0] - time.monotonic() if self._calls else _MAX_WAIT
                if wait > 0:
                    self._changed.wait(min(wait, _MAX_WAIT))
                    continue
                _, _, timed = heapq.heappop(self._calls)
            timed.fire()


WATCHDOG = Watchdog()
if hasattr(os, "register_at_fork"):  # a forked process has no watchdog thread
    os.register_at_fork(after_in_child=lambda: WATCHDOG.__init__())  # type: ignore[misc]


def time_limit(run_options: Any, options: SessionOptions) -> float | None:
    """The seconds that a run may take: its own limit, or else its session's."""
    own = getattr(run_options, "timeout", None)
    name, seconds = ("timeout", own) if own is not None else ("run_timeout", options.run_timeout)
    return check_seconds(name, seconds)


def check_seconds(name: str, seconds: float | None) -> float | None:
    """Refuse a time limit that is not a positive, finite number of seconds."""
    if seconds is not None and not 0 < seconds < float("inf"):
        raise OptionError(f"{name} must be a number of seconds above 0, or None, not {seconds}")
    return seconds


class Deadline:
    """The time limit of one run: sets `terminate` on the run's options when it expires."""

    def __init__(self, seconds: float, run_options: Any, isolated: bool) -> None:
        self._seconds, self._isolated = seconds, isolated
        if run_options is None:
            self.options: Any = RunOptions()
        elif isinstance(run_options, RunOptions):
            self.options = run_options.for_one_run()
        elif isolated:  # onnxruntime's own options do not reach another process
            self.options = RunOptions.of(run_options)
        else:
            self.options = run_options
        self._is_users = self.options is run_options
        self._timed = WATCHDOG.after(seconds, self._terminate)

    def _terminate(self) -> None:
        self.options.terminate = True

    def stop(self) -> bool:
        """End the time limit of a run that has ended; whether it had expired before."""
        expired = self._timed.cancel()
        if expired and self._is_users:
            self.options.terminate = False
        return expired

    def error(self) -> DeadlineExceeded:
        hint = "raise RunOptions.timeout or SessionOptions.run_timeout, or feed less"
        if not self._isolated:
            hint += "; a single kernel cannot be stopped: use isolated=True for a hard limit"
        return DeadlineExceeded(
            f"the run took longer than its limit of {self._seconds:g} s\n{hint}"
        )


def run_within(seconds: float, run_options: Any, isolated: bool, run: Callable[[Any], T]) -> T:
    """Return `run(options)`, or raise DeadlineExceeded when it takes longer than `seconds`."""
    deadline = Deadline(seconds, run_options, isolated)
    try:
        result = run(deadline.options)
    except BaseException as error:
        if deadline.stop() and isinstance(error, Exception):
            raise deadline.error() from error
        raise
    if deadline.stop():
        raise deadline.error()
    return result


def async_deadline(
    seconds: float, run_options: Any, isolated: bool, callback: Callable[..., None]
) -> tuple[Any, Callable[..., None], Callable[[], bool]]:
    """A time limit for a run in the background: its options, its callback, and what cancels it."""
    deadline = Deadline(seconds, run_options, isolated)

    def done(results: list[Any], user_data: Any, message: str) -> None:
        if deadline.stop():
            results, message = [], str(deadline.error())
        callback(results, user_data, message)

    return deadline.options, done, deadline.stop
