"""Load a server from one process: connections, requests, answers, until the time is over."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from urllib.parse import urlsplit

from onward.serving.load_test.arrivals import ClosedPace, OpenPace, Pace, arrival_times
from onward.serving.load_test.connections import (
    GrpcLoadConnection,
    LoadConnection,
    Open,
    connection_opener,
)
from onward.serving.load_test.load_figures import REFUSED, TIMED_OUT, LoadFigures
from onward.serving.load_test.load_plan import LoadPlan

NO_CONNECTION = "no free connection"
_TICK = 0.02  # seconds between looks at the clock, which also measure how late the loop is
_RETRY = 0.05  # seconds before a connection that was refused is tried again

Progress = Callable[[float, LoadFigures], None]  # given the seconds that have passed


class LoadLoop:
    """One load test in this process and this event loop."""

    def __init__(
        self,
        plan: LoadPlan,
        payloads: Sequence[bytes],
        open_connection: Open | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._plan, self._payloads, self._clock = plan, payloads, clock
        self._open_connection = open_connection or connection_opener(urlsplit(plan.url))
        self.figures = LoadFigures()
        self._idle: list[LoadConnection] = []
        self._open: set[LoadConnection] = set()
        self._opening = 0
        self._sent = plan.seed  # each process starts at another payload
        self._tasks: set[asyncio.Task[None]] = set()
        self._used: float | None = None  # seconds of the processor when the measuring began

    async def run(self, on_progress: Progress | None = None) -> LoadFigures:
        """Load the server, wait for the last answers and return the figures."""
        plan = self._plan
        self._start = self._clock()
        self._from = self._start + plan.warm_up
        self._end = self._start + plan.total_seconds
        self._pace: Pace
        self._timer: _ArrivalTimer | None = None
        if plan.rate is None:
            self._pace = ClosedPace(self._end)
            for _ in range(plan.connections):
                self._open_another()
        else:
            times = arrival_times(plan)
            self._pace = OpenPace(times, self._start)
            self._timer = _ArrivalTimer(times + self._start, self._clock, self._on_arrival)
        try:
            await self._watch(on_progress)
        finally:
            await self._close()
        return self.figures

    def stop(self) -> None:
        """End now: the figures are those so far."""
        now = self._clock()
        if now < self._end:
            self._end = now
            self.figures.is_complete = False
        self._drop_unsent(now)

    # -- requests ---------------------------------------------------------------------------------

    def _on_answer(
        self, connection: LoadConnection, outcome: str, is_good: bool, stays: bool
    ) -> None:
        now = self._clock()
        if connection.intended >= self._from:
            latency = now - connection.intended
            self.figures.count(outcome, is_good, latency, now <= self._end)
        if stays:
            self._send_next(connection, now)
            return
        self._open.discard(connection)
        self._open_another()

    def _send_next(self, connection: LoadConnection, now: float) -> None:
        intended = self._pace.next_start(now)
        if intended is None:
            self._idle.append(connection)
            return
        self._send(connection, intended, now)

    def _send(self, connection: LoadConnection, intended: float, now: float) -> None:
        payload = self._payloads[self._sent % len(self._payloads)]
        self._sent += 1
        connection.send(payload, intended, now)

    def _on_arrival(self) -> None:
        """Open loop: the time of one or more requests has come."""
        assert isinstance(self._pace, OpenPace)
        now = self._clock()
        waiting = self._pace.arrive(now)
        while self._idle and (intended := self._pace.next_start(now)) is not None:
            waiting -= 1
            if intended >= self._from:
                self.figures.lateness.add(now - intended)
            self._send(self._idle.pop(), intended, now)
        for _ in range(waiting - self._opening):
            self._open_another()

    # -- connections ------------------------------------------------------------------------------

    def _open_another(self) -> None:
        if len(self._open) + self._opening < self._plan.connections and not self._pace.is_over:
            self._opening += 1
            self._spawn(self._connect())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        try:
            connection = await self._open_connection(self._on_answer, self._on_closed)
        except OSError:
            now = self._clock()
            intended = self._pace.next_start(now)
            if intended is not None and intended >= self._from:
                self.figures.count(REFUSED, False, now - intended, now <= self._end)
            await asyncio.sleep(_RETRY)
            self._opening -= 1
            self._open_another()
            return
        self._opening -= 1
        self._open.add(connection)
        self._send_next(connection, self._clock())

    def _on_closed(self, connection: LoadConnection) -> None:
        """The server closed a connection that had no request."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._plan.rate is None:
            self._open_another()

    # -- the clock --------------------------------------------------------------------------------

    async def _watch(self, on_progress: Progress | None) -> None:
        """Look at the clock until the time is over and the last requests are answered."""
        shown, last = self._start, self._start + self._plan.total_seconds + self._plan.timeout
        while True:
            before = self._clock()
            await asyncio.sleep(_TICK)
            now = self._clock()
            if now >= self._from and self._used is None:
                self._used = time.process_time()
            if self._from <= before and now <= self._end:
                self.figures.lateness.add(max(0.0, now - before - _TICK))
                self._measure(now)
            self._end_timed_out(now)
            if on_progress is not None and now - shown >= 0.25:
                shown = now
                on_progress(now - self._start, self.figures)
            if now < self._end:
                continue
            self._drop_unsent(now)
            if now >= last or not any(each.is_busy for each in self._open):
                break
        self._measure(min(now, self._end))

    def _measure(self, now: float) -> None:
        self.figures.seconds = max(0.0, now - self._from)
        if self._used is not None and self.figures.seconds and now < self._end:
            self.figures.cpu_share = (time.process_time() - self._used) / self.figures.seconds

    def _end_timed_out(self, now: float) -> None:
        for connection in [each for each in self._open if each.is_busy]:
            if now - connection.sent > self._plan.timeout:
                if connection.intended >= self._from:
                    latency = now - connection.intended
                    self.figures.count(TIMED_OUT, False, latency, False)
                connection.abort()
                self._open.discard(connection)
                self._open_another()

    def _drop_unsent(self, now: float) -> None:
        """Count the requests that never found a connection: to forget them would flatter."""
        while isinstance(self._pace, OpenPace):
            intended = self._pace.next_start(now)
            if intended is None:
                break
            if intended >= self._from:
                self.figures.unsent += 1
                self.figures.count(NO_CONNECTION, False, now - intended, False)
        self._pace.stop()

    async def _close(self) -> None:
        self._pace.stop()
        if self._timer is not None:
            self._timer.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._open:
            connection.abort()
        for connection in self._open:
            if isinstance(connection, GrpcLoadConnection):
                await connection.wait_closed()
        await asyncio.sleep(0)  # transports close in the loop's next turn


class _ArrivalTimer:
    """Calls back in the event loop at given times.

    A thread sleeps until each: the timers of an event loop are right within 1 ms only, which is
    more than the latency of a small model.
    """

    def __init__(self, times: Any, clock: Callable[[], float], arrived: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._times, self._clock, self._arrived = times, clock, arrived
        self._is_called = self._is_stopped = False
        threading.Thread(target=self._wait, daemon=True).start()

    def stop(self) -> None:
        self._is_stopped = True

    def _wait(self) -> None:
        for when in self._times.tolist():
            delay = when - self._clock()
            if delay > 0:
                time.sleep(delay)
            if self._is_stopped:
                return
            if not self._is_called:
                self._is_called = True
                try:
                    self._loop.call_soon_threadsafe(self._call)
                except RuntimeError:  # the loop was closed
                    return

    def _call(self) -> None:
        self._is_called = False
        if not self._is_stopped:
            self._arrived()
