"""A model behind a queue: checks requests, runs them in batches, answers each.

model = ServedModel("digits", "1", instances, settings, loop=loop)
await model.prepare()
cancel = model.submit(request, done)  # done(response or error), once, in the loop's thread
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from onward.errors import ModelUnavailable, ServingError
from onward.serving.batching.batch_check import NotRunnable, run_once
from onward.serving.batching.batch_delay import FixedDelay, LearnedDelay
from onward.serving.batching.batch_joining import FixedJoining, JoinRule, LearnedJoining
from onward.serving.batching.batch_run import (
    BatchRun,
    BatchRunner,
    InstanceThread,
    QueuedRequest,
    close_instance,
)
from onward.serving.batching.batching import Batching, plan_batching, served_inputs, served_outputs
from onward.serving.batching.dispatcher import Dispatcher, Sequences
from onward.serving.batching.inline_runs import InlineRuns
from onward.serving.batching.model_statistics import ModelStatistics
from onward.serving.batching.request_answers import RequestAnswers
from onward.serving.batching.request_check import RequestCheck
from onward.serving.batching.scheduler import BatchPolicy
from onward.serving.batching.sequence_batching import SequenceBatching
from onward.serving.instance import Instance, is_computation
from onward.serving.observer import NoObserver, Observer
from onward.serving.requests import Cancel, Done, InferRequest, TensorSpec
from onward.serving.settings import ModelSettings
from onward.sessions.result_cache import ResultCache

_LOG = logging.getLogger("onward.serving")
_NEARLY_FULL = 0.9
_WORKER_RUNS = 4  # that a batch may take: together, then one by one until it is quarantined
_CLOSE_GRACE = 5.0  # seconds that a batch may run on when its model is closed


class ServedModel:
    """One version of a model that is served. All methods are called in the loop's thread."""

    def __init__(
        self,
        name: str,
        version: str,
        instances: Sequence[Instance],
        settings: ModelSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
        observer: Observer | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.name, self.version = name, version
        self.batching = Batching(reason="it is being loaded")
        self.inputs: list[TensorSpec] = list(instances[0].inputs)
        self.outputs: list[TensorSpec] = list(instances[0].outputs)
        self._instances, self._settings = list(instances), settings
        self._loop, self._clock, self._wall_clock = loop, clock, wall_clock
        self._observer = None if type(observer) is NoObserver else observer
        self._told_waiting = -1  # the length of the queue that the observer was told last
        self._statistics = ModelStatistics(name, version)
        self._batches: queue.SimpleQueue[BatchRun | None] = queue.SimpleQueue()
        self._is_accepting = self._is_started = False
        self._state_outputs: tuple[str, ...] = ()
        self._open = list(instances)
        self._when_idle: list[asyncio.Future[None]] = []
        self._when_closed: list[asyncio.Future[None]] = []
        self._runner: BatchRunner | None = None
        is_lone = len(instances) == 1 and is_computation(instances[0])
        self._inline = InlineRuns() if is_lone else None
        self._start(Batching(), None)

    async def prepare(self) -> None:
        """Check batching and warm up, in another thread; then requests are accepted."""
        batching = await self._loop.run_in_executor(None, self._plan)
        settings = self._settings
        sequences: Sequences | None = None
        if self.keeps_sequences:
            sequences = SequenceBatching(self.name, self._instances[0], settings, batching.axes)
            self._state_outputs = tuple(sequences.state_outputs)  # computed for every request
        self.batching = batching
        self._start(batching, sequences)
        for number, instance in enumerate(self._instances):
            self._runner = BatchRunner(self.name, instance, batching.layout, self._clock)
            InstanceThread(
                f"onward-{self.name}-{number}",
                instance,
                self._runner,
                self._batches,
                self._loop,
                self._finished,
                self._ended,
            )
        self._is_accepting = self._is_started = True

    @property
    def keeps_sequences(self) -> bool:
        """Requests are parts of sequences, and need the id of one."""
        return bool(self._settings.sequence_states or self._settings.sequence_controls)

    @property
    def queue_length(self) -> int:
        """Requests that have not started."""
        return self._dispatcher.waiting

    @property
    def in_flight(self) -> int:
        """Requests that were accepted and are not answered."""
        return self._dispatcher.waiting + self._dispatcher.running

    @property
    def is_stuck(self) -> bool:
        """None of its instances ends its run: requests are refused."""
        return self._dispatcher.is_stuck

    @property
    def stuck_instances(self) -> int:
        """Instances whose run does not end."""
        return self._dispatcher.stuck

    @property
    def joining(self) -> JoinRule:
        """Which waiting requests are joined."""
        return self._joining.kept if self.batching.max_size > 1 else JoinRule.ALONE

    @property
    def is_nearly_full(self) -> bool:
        """The queue is at 90 % of its limit, or above."""
        return self.queue_length >= _NEARLY_FULL * self._settings.max_queue_size

    def statistics(self) -> dict[str, Any]:
        """Triton's ModelStatistics, as JSON."""
        return self._statistics.to_json()

    def submit(self, request: InferRequest, done: Done) -> Cancel:
        """Queue a request. A request that is refused is answered before this returns."""
        now = self._clock()
        try:
            if not self._is_accepting:
                raise ModelUnavailable(
                    f"model {self.name!r} is not ready: it is being loaded or unloaded",
                    retry_after=1.0,
                )
            checked = self._check(request)
            work = QueuedRequest(
                checked.key,
                checked.rows or 1,
                self._priority(request),
                now,
                self._deadline(request, now),
                request,
                done,
                checked.feeds,
                checked.outputs,
                checked.rows,
                checked.lengths,
            )
            if self._cache is not None and self._answers.look_up(work):
                return _do_nothing
            if self._state_outputs and work.outputs is not None:
                work.outputs = tuple(dict.fromkeys(work.outputs + self._state_outputs))
            self._dispatcher.add(work)
        except ServingError as error:
            self._answers.refuse(request, done, now, error)
            return _do_nothing
        return partial(self._cancel, work)

    async def drain(self, timeout: float) -> None:
        """Accept nothing more, and wait until everything that was accepted is answered."""
        self._is_accepting = False
        if self._is_idle:
            return
        self._dispatcher.is_urgent = True
        self._dispatcher.wake()
        idle = self._loop.create_future()
        self._when_idle.append(idle)
        await asyncio.wait([idle], timeout=timeout)

    async def close(self) -> None:
        """Answer what still waits with an error, and close the instances."""
        self._is_accepting = False
        for work in self._dispatcher.stop():
            self._refuse(work, ModelUnavailable(f"model {self.name!r} was unloaded"))
        if self._is_started and self._open:
            closed = self._loop.create_future()
            self._when_closed.append(closed)
            for _ in self._instances:
                self._batches.put(None)
            await asyncio.wait([closed], timeout=_CLOSE_GRACE)
            self._dispatcher.abandon_runs()
        while self._open:  # it was never started, or a batch hangs
            await self._loop.run_in_executor(None, close_instance, self._open.pop())

    @property
    def _is_idle(self) -> bool:
        return not (self._dispatcher.waiting or self._dispatcher.running)

    def _plan(self) -> Batching:
        """Runs in another thread."""
        batching = plan_batching(self.name, self._instances[0], self._settings)
        if self._settings.warm_up:
            for instance in self._instances[1 if batching.is_checked else 0 :]:
                try:
                    run_once(instance, batching.layout)
                except NotRunnable as error:
                    _LOG.info("model %r was not warmed up: %s", self.name, error)
        return batching

    def _start(self, batching: Batching, sequences: Sequences | None) -> None:
        settings, first = self._settings, self._instances[0]
        hidden = {each.input for each in settings.sequence_states} | set(settings.sequence_controls)
        hidden_outputs = {each.output for each in settings.sequence_states}
        if hidden_outputs >= {spec.name for spec in first.outputs}:
            hidden_outputs = set()  # else clients would get nothing
        self.inputs = served_inputs(first, batching, hidden)
        self.outputs = served_outputs(first, batching, hidden_outputs)
        self._check = RequestCheck(
            self.name, self.inputs, self.outputs, batching, settings.length_buckets
        )
        has_cache = settings.result_cache_bytes and sequences is None
        self._cache = ResultCache(settings.result_cache_bytes) if has_cache else None
        self._answers = RequestAnswers(
            self._statistics,
            self._observer,
            self._cache,
            [spec.name for spec in self.outputs],
            bool(hidden_outputs),
            self._clock,
            self._wall_clock,
        )
        can_join = batching.max_size > 1
        preferred = tuple(settings.preferred_batch_sizes) if can_join else ()
        delay = settings.batch_delay if can_join else 0.0
        self._joining = _choose_joining(settings, batching)
        self._dispatcher = Dispatcher(
            self.name,
            BatchPolicy(max(1, batching.max_size), preferred, settings.max_queue_size),
            LearnedDelay() if delay == "auto" else FixedDelay(delay),
            self._joining,
            sequences,
            len(self._instances),
            # a worker process ends its own runs; its batch then runs one by one
            settings.run_limit * (_WORKER_RUNS if settings.workers else 1),
            self._loop,
            self._clock,
            self._hand_over,
            self._refuse,
        )

    def _priority(self, request: InferRequest) -> int:
        """1 is the first to be served; a request that gives none, or too large a one: default."""
        levels = self._settings.priority_levels
        if not levels:
            return 0
        given = request.priority
        return given if 0 < given <= levels else self._settings.default_priority or levels

    def _deadline(self, request: InferRequest, now: float) -> float:
        """The model's timeout, or a shorter one of the request; 0 is none, as in Triton."""
        timeout = self._settings.timeout or math.inf
        if request.timeout and self._settings.allow_timeout_override:
            timeout = min(timeout, request.timeout)
        return now + timeout

    def _cancel(self, work: QueuedRequest) -> None:
        self._dispatcher.cancel(work)
        self._tell_queue()

    def _refuse(self, work: QueuedRequest, error: ServingError) -> None:
        self._answers.refuse(work.request, work.done, work.arrival, error)
        self._tell_queue()

    def _hand_over(self, batch: BatchRun) -> None:
        """Run a batch in a thread of its instance, or, if the model is quick, in this one."""
        inline = self._inline
        if inline is None or not inline.is_on or self._runner is None:
            self._batches.put(batch)
            return
        start = time.thread_time()
        self._runner.run(batch)
        self._loop.call_soon(self._finished, batch, time.thread_time() - start)

    def _finished(self, batch: BatchRun, computed: float = math.inf) -> None:
        if self._inline is not None:
            self._inline.observe(batch.split - batch.started, computed)
        self._tell_queue()  # the queue is longest before the next batch is taken from it
        self._dispatcher.release(batch)  # first, so that the instance runs while answers are sent
        self._answers.finish(batch)
        self._tell_queue()

    def _tell_queue(self) -> None:
        waiting = self._dispatcher.waiting
        if self._observer is not None and (waiting or self._told_waiting):
            self._told_waiting = waiting
            self._observer.on_queue(self.name, self.version, waiting)
        if self._when_idle and self._is_idle:
            _resolve(self._when_idle)

    def _ended(self, instance: Instance) -> None:
        if instance in self._open:
            self._open.remove(instance)
        if not self._open:
            _resolve(self._when_closed)


def _choose_joining(settings: ModelSettings, batching: Batching) -> FixedJoining | LearnedJoining:
    """Learned if the delay is, and no sizes were asked for."""
    has_sizes = settings.preferred_batch_sizes or settings.padded_batch_sizes
    if batching.max_size <= 1 or settings.batch_delay != "auto" or has_sizes:
        return FixedJoining()
    equal = (JoinRule.EQUAL,) if batching.layout.padded else ()
    return LearnedJoining((JoinRule.ALONE, *equal, JoinRule.ALL))


def _resolve(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
    waiting.clear()


def _do_nothing() -> None:
    """The cancellation of a request that is answered already."""
