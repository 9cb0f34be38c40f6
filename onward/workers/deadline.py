"""Deadlines: one thread of the process ends the runs that take longer than they may."""

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
_LONGEST_WAIT = 3600.0  # seconds; what a lock can wait for has an end


class Alarm:
    """A call that comes at its time, unless it is cancelled first."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.fired = self.cancelled = False
        self._call, self._lock = call, threading.Lock()

    def fire(self) -> None:
        with self._lock:
            if not self.cancelled:
                self.fired = True
                self._call()

    def cancel(self) -> bool:
        """Whether it was too late: after this, the call has been made or will never be."""
        with self._lock:
            self.cancelled = True
        return self.fired


class Watchdog:
    """A heap of alarms and the one thread that waits for the next of them."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._alarms: list[tuple[float, int, Alarm]] = []
        self._number = count()
        self._thread: threading.Thread | None = None
        self._sweep_at = 1024  # how many alarms, before the cancelled ones are swept out

    def after(self, seconds: float, call: Callable[[], None]) -> Alarm:
        """Make the call, which must be short, after so many seconds."""
        alarm = Alarm(call)
        entry = (time.monotonic() + seconds, next(self._number), alarm)
        with self._changed:
            if len(self._alarms) >= self._sweep_at:
                self._alarms = [kept for kept in self._alarms if not kept[2].cancelled]
                heapq.heapify(self._alarms)
                self._sweep_at = max(1024, 2 * len(self._alarms))
            heapq.heappush(self._alarms, entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="onward-watchdog")
                self._thread.daemon = True
                self._thread.start()
            elif self._alarms[0] is entry:
                self._changed.notify()
        return alarm

    def _watch(self) -> None:
        while True:
            with self._changed:
                while self._alarms and self._alarms[0][2].cancelled:
                    heapq.heappop(self._alarms)
                wait = self._alarms[0][0] - time.monotonic() if self._alarms else _LONGEST_WAIT
                if wait > 0:
                    self._changed.wait(min(wait, _LONGEST_WAIT))
                    continue
                _, _, alarm = heapq.heappop(self._alarms)
            alarm.fire()


WATCHDOG = Watchdog()
if hasattr(os, "register_at_fork"):  # threads do not come along into a fork
    os.register_at_fork(after_in_child=lambda: WATCHDOG.__init__())  # type: ignore[misc]


def time_limit(run_options: Any, options: SessionOptions) -> float | None:
    """The seconds that a run may take: the run's own limit, else its session's."""
    own = getattr(run_options, "timeout", None)
    name, seconds = ("timeout", own) if own is not None else ("run_timeout", options.run_timeout)
    return check_seconds(name, seconds)


def check_seconds(name: str, seconds: float | None) -> float | None:
    """A limit as it is, if it is one."""
    if seconds is not None and not 0 < seconds < float("inf"):
        raise OptionError(f"{name} is a number of seconds above 0, or None, not {seconds}")
    return seconds


class Deadline:
    """The end of one run: its options, which say `terminate` when the time is over."""

    def __init__(self, seconds: float, run_options: Any, isolated: bool) -> None:
        self._seconds, self._isolated = seconds, isolated
        if run_options is None:
            self.options: Any = RunOptions()
        elif isinstance(run_options, RunOptions):
            self.options = run_options.for_one_run()
        elif isolated:  # onnxruntime's own, which another process cannot hear
            self.options = RunOptions.of(run_options)
        else:
            self.options = run_options
        self._lent = self.options is run_options
        self._alarm = WATCHDOG.after(seconds, self._end)

    def _end(self) -> None:
        self.options.terminate = True

    def over(self) -> bool:
        """Whether the time was over before the run was. The run has ended when this is asked."""
        late = self._alarm.cancel()
        if late and self._lent:
            self.options.terminate = False
        return late

    def error(self) -> DeadlineExceeded:
        hint = "raise RunOptions.timeout or SessionOptions.run_timeout, or feed less"
        if not self._isolated:
            hint += "; a single kernel cannot be stopped: use isolated=True for a hard limit"
        return DeadlineExceeded(
            f"the run took longer than its limit of {self._seconds:g} s\n{hint}"
        )


def within(seconds: float, run_options: Any, isolated: bool, run: Callable[[Any], T]) -> T:
    """What `run(options)` gives, or DeadlineExceeded; the options end it when time is over."""
    deadline = Deadline(seconds, run_options, isolated)
    try:
        result = run(deadline.options)
    except BaseException as error:
        if deadline.over() and isinstance(error, Exception):
            raise deadline.error() from error
        raise
    if deadline.over():
        raise deadline.error()
    return result


def call_within(
    seconds: float, run_options: Any, isolated: bool, callback: Callable[..., None]
) -> tuple[Any, Callable[..., None], Callable[[], bool]]:
    """The same for a run in the background: its options, its callback, and what calls it off."""
    deadline = Deadline(seconds, run_options, isolated)

    def done(results: list[Any], user_data: Any, message: str) -> None:
        if deadline.over():
            results, message = [], str(deadline.error())
        callback(results, user_data, message)

    return deadline.options, done, deadline.over
