"""Hands batches to idle instances: the scheduler with an event loop around it.

Everything here runs in the loop's thread.
"""

from __future__ import annotations

import logging
import math
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

import numpy as np

from onward.errors import ModelUnavailable, RequestExpired, ServerOverloaded, ServingError
from onward.serving.batching.batch_delay import FixedDelay, LearnedDelay
from onward.serving.batching.batch_joining import FixedJoining, LearnedJoining
from onward.serving.batching.batch_run import BatchRun, Clock, QueuedRequest
from onward.serving.batching.scheduler import BatchPolicy, BatchScheduler
from onward.serving.batching.sequence_batching import SequenceBatching
from onward.serving.compiled_shapes import COMPILE_FACTOR
from onward.serving.instance import interrupt_run, is_compiling
from onward.serving.requests import Array

Sequences = SequenceBatching[QueuedRequest]
_LOG = logging.getLogger("onward.serving")
_INTERRUPT_AGAIN = 1.0  # seconds
_RETRY_AFTER = (0.1, 60.0)  # seconds, at least and at most


class Dispatcher:
    """The waiting requests of one model, and which of its instances are idle.

    `start` hands a batch to an instance; `refuse` answers a request that will not run, or whose
    deadline passes while it runs. A run of more than `run_limit` seconds is stuck: its requests are
    refused, and so are all others while no instance is left. One that may compile has more time.
    """

    def __init__(
        self,
        model: str,
        policy: BatchPolicy,
        delay: FixedDelay | LearnedDelay,
        joining: FixedJoining | LearnedJoining,
        sequences: Sequences | None,
        instances: int,
        run_limit: float,
        loop: AbstractEventLoop,
        clock: Clock,
        start: Callable[[BatchRun], None],
        refuse: Callable[[QueuedRequest, ServingError], None],
    ) -> None:
        self._model, self._loop, self._clock = model, loop, clock
        self._scheduler: BatchScheduler[QueuedRequest] = BatchScheduler(policy, delay, joining)
        self._delay, self._joining, self._sequences = delay, joining, sequences
        self._start, self._refuse = start, refuse
        self._instances = self._idle = instances
        self._run_limit = run_limit
        self._runs: list[BatchRun] = []
        self._next_due = math.inf  # of all runs, or earlier
        self._is_awake = False  # a dispatch is due in this iteration of the loop
        self._timer: TimerHandle | None = None
        self._timer_at = math.inf
        self._is_stopped = False
        self._seconds_per_request = 0.0  # of an instance, as measured lately
        self.running = 0  # requests that are not answered
        self.stuck = 0  # instances
        self.is_urgent = False  # wait for no other requests: set while the model drains

    @property
    def waiting(self) -> int:
        """The number of requests that have not started."""
        held = 0 if self._sequences is None else self._sequences.held_count
        return self._scheduler.count + held

    @property
    def is_stuck(self) -> bool:
        """No instance is left that answers."""
        return self.stuck >= self._instances

    def add(self, work: QueuedRequest) -> None:
        """Queue a request, or raise why it cannot be."""
        if self.is_stuck:
            raise self._all_stuck()
        if self.waiting >= self._scheduler.policy.max_waiting:
            raise ServerOverloaded(
                f"Exceeds maximum queue size: {self.waiting} requests wait for model "
                f"{self._model!r}",
                retry_after=self._estimate_wait(),
            )
        self._delay.observe_arrival(work.arrival)
        if self._sequences is None:
            self._scheduler.add(work)
        elif self._sequences.enter(work, work.arrival) and not self._admit(work):
            self._leave(work, None)
        if self._idle:
            self.wake()
        elif work.deadline < self._timer_at:
            self._set_timer(work.deadline, work.arrival)

    def cancel(self, work: QueuedRequest) -> None:
        """Drop a request whose client is gone; a run that none waits for is ended if it can be."""
        if self._scheduler.remove(work):
            self._leave(work, None)
        elif self._sequences is None:
            self._cancel_running(work)
        elif work.part is not None:  # one that runs goes on: the next one needs its state
            self._sequences.remove(work)

    def _cancel_running(self, work: QueuedRequest) -> None:
        batch = next((each for each in self._runs if work in each.works), None)
        if batch is None or work.is_answered:
            return
        work.is_answered = True
        self.running -= 1
        if all(each.is_answered for each in batch.works):
            batch.due = self._next_due = -math.inf
            self.wake()

    def wake(self) -> None:
        """Dispatch once the requests that the loop has read by now are queued."""
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon(self.dispatch)

    def dispatch(self) -> None:
        """Drop what has expired, and give each idle instance a batch that is due."""
        self._is_awake = False
        scheduler, now = self._scheduler, self._clock()
        if self._next_due <= now:
            self._check_runs(now)
        if self._next_deadline <= now:
            self._expire(now)
        again = math.inf
        while self._idle and scheduler.count:
            found = scheduler.next_batch(now, is_urgent=self.is_urgent)
            if not isinstance(found, list):
                again = found
                break
            self._idle -= 1
            self.running += len(found)
            batch = self._open_run(found, now)
            batch.rule = scheduler.rule_of_last
            self._start(batch)
        again = min(again, self._next_deadline, self._next_due)
        if self._sequences is not None:
            self._sequences.forget_idle(now)
            again = min(again, self._sequences.next_timeout)
        if again < self._timer_at and not self._is_stopped:
            self._set_timer(again, now)

    def release(self, batch: BatchRun) -> None:
        """A batch came back: learn from it, and give its instance the next one."""
        works = batch.works
        self._idle += 1
        self._runs.remove(batch)
        self.running -= len(works) - sum([work.is_answered for work in works])
        if batch.is_stuck:
            self.stuck -= 1
        if batch.is_stuck or batch.compiles:
            what = "that was stuck" if batch.is_stuck else "of new shapes"
            seconds = self._clock() - batch.started
            _LOG.warning("model %r: the run %s ended, %.0f s", self._model, what, seconds)
        seconds = batch.split - batch.started
        if batch.was_joined:
            run = batch.ran - batch.joined
            self._delay.observe_run(len(works), batch.rows, run, self._clock())
        if batch.rule is not None:
            self._learn_joining(batch, seconds)
        self._seconds_per_request += 0.1 * (seconds / len(works) - self._seconds_per_request)
        if self._sequences is not None:
            for work, answer in zip(works, batch.answers):
                if work.is_answered or isinstance(answer, ServingError):
                    self._leave(work, None)
                else:
                    self._leave(work, self._take_states(answer))
        if self._scheduler.count or self._sequences is not None:
            self.dispatch()

    def _learn_joining(self, batch: BatchRun, seconds: float) -> None:
        if batch.rule is None or (
            len(batch.works) == 1 and isinstance(batch.answers[0], ServingError)
        ):
            return
        if self._joining.observe(batch.rule, batch.elements, seconds):
            _LOG.info("model %r: %s", self._model, self._joining.explain())

    def stop(self) -> list[QueuedRequest]:
        """Drop and return everything that waits; no timer is set any more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held = [] if self._sequences is None else self._sequences.take_held()
        return self._scheduler.take_all() + held

    def abandon_runs(self) -> None:
        """Refuse the requests that still run: nothing waits for their runs any more."""
        for batch in self._runs:
            self._answer_early(batch, math.inf, f"model {self._model!r} was unloaded")

    def _open_run(self, works: list[QueuedRequest], now: float) -> BatchRun:
        batch = BatchRun(works, now)
        batch.stuck_at = now + self._run_limit
        batch.due = min([batch.stuck_at, *[work.deadline for work in works]])
        self._next_due = min(self._next_due, batch.due)
        self._runs.append(batch)
        return batch

    def _check_runs(self, now: float) -> None:
        """Answer the requests that ran until their deadline, and those of runs that are stuck."""
        for batch in self._runs:
            if batch.due > now:
                continue
            self._answer_early(batch, now)
            if batch.stuck_at <= now and not batch.is_stuck:
                if not batch.compiles and is_compiling(batch.instance):
                    self._let_compile(batch, now)
                else:
                    self._count_stuck(batch, now)
            left = [work.deadline for work in batch.works if not work.is_answered]
            if not left:  # nobody waits for it; a run that has not started cannot be interrupted
                left = [now + _INTERRUPT_AGAIN]
                if batch.instance is not None:
                    interrupt_run(batch.instance)
            batch.due = min([math.inf if batch.is_stuck else batch.stuck_at, *left])
        self._next_due = min([batch.due for batch in self._runs], default=math.inf)

    def _answer_early(self, batch: BatchRun, now: float, reason: str = "") -> None:
        """Refuse the requests of a run whose deadline has passed, or all for a reason."""
        for work in batch.works:
            if work.is_answered or (work.deadline > now and not reason):
                continue
            work.is_answered = True
            self.running -= 1
            if reason:
                self._refuse(work, ModelUnavailable(reason))
                continue
            text = f"model {self._model!r} still runs it after {now - work.arrival:.3f} s"
            self._refuse(work, RequestExpired(f"Request timeout expired: {text}"))

    def _let_compile(self, batch: BatchRun, now: float) -> None:
        batch.compiles = True
        batch.stuck_at = now + (COMPILE_FACTOR - 1) * self._run_limit
        _LOG.warning(
            "model %r: a run of %d requests has not ended after %.0f s: its engine may compile for "
            "these shapes; it is not stuck before %.0f s", self._model, len(batch.works),
            now - batch.started, COMPILE_FACTOR * self._run_limit,
        )  # fmt: skip

    def _count_stuck(self, batch: BatchRun, now: float) -> None:
        """Report a run that does not end, and refuse what waits for it."""
        batch.is_stuck = True
        self.stuck += 1
        _LOG.error(
            "model %r is stuck: a run of %d requests has not ended after %.0f s; %d of %d instances"
            " are left", self._model, len(batch.works), now - batch.started,
            self._instances - self.stuck, self._instances,
        )  # fmt: skip
        seconds = self._run_limit * (COMPILE_FACTOR if batch.compiles else 1)
        limit = f"its run did not end within {seconds:g} s"
        self._answer_early(batch, now, f"model {self._model!r} is stuck: {limit}")
        if not self.is_stuck:
            return
        held = [] if self._sequences is None else self._sequences.take_held()
        for work in held:
            self._refuse(work, self._all_stuck())
        for work in self._scheduler.take_all():
            self._refuse(work, self._all_stuck())
            self._leave(work, None)

    def _all_stuck(self) -> ModelUnavailable:
        return ModelUnavailable(
            f"model {self._model!r} is stuck: no run of its {self._instances} instances ended "
            f"within {self._run_limit:g} s",
            retry_after=_RETRY_AFTER[1],
        )

    def _take_states(self, answer: dict[str, Array]) -> dict[str, Array]:
        """Copies of the state outputs, which would keep the whole batch in memory."""
        assert self._sequences is not None
        outputs = self._sequences.state_outputs
        return {name: np.copy(answer[output]) for output, name in outputs.items()}

    def _admit(self, work: QueuedRequest) -> bool:
        """Queue the first of a sequence's requests, with the state that it starts from.

        False: it was refused, and must leave its sequence.
        """
        assert self._sequences is not None
        try:
            extra = self._sequences.feeds(work, work.true_rows)
        except ServingError as error:
            self._refuse(work, error)
            return False
        work.feeds.update(extra)
        states = self._sequences.state_outputs.values()
        work.key = (work.key, *(work.feeds[name].shape for name in states))
        return self._scheduler.add(work)

    def _leave(self, work: QueuedRequest, states: dict[str, Array] | None) -> None:
        """A request ran or was dropped: the next one of its sequence is queued."""
        if self._sequences is None:
            return
        following = self._sequences.leave(work, states, self._clock())
        while following is not None and not self._admit(following):
            following = self._sequences.leave(following, None, self._clock())

    @property
    def _next_deadline(self) -> float:
        """Of the requests that wait, those that their sequence holds among them."""
        held = math.inf if self._sequences is None else self._sequences.next_deadline
        return min(self._scheduler.next_deadline, held)

    def _expire(self, now: float) -> None:
        held = [] if self._sequences is None else self._sequences.take_expired(now)
        for work in held:
            self._refuse_expired(work, now)
        for work in self._scheduler.take_expired(now):
            self._refuse_expired(work, now)
            self._leave(work, None)

    def _refuse_expired(self, work: QueuedRequest, now: float) -> None:
        waited = now - work.arrival
        text = f"Request timeout expired: it waited {waited:.3f} s for model {self._model!r}"
        self._refuse(work, RequestExpired(text))

    def _estimate_wait(self) -> float:
        low, high = _RETRY_AFTER
        wait = self._seconds_per_request * self.waiting / self._instances
        return min(max(wait, low), high)

    def _set_timer(self, at: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - now), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self.dispatch()
