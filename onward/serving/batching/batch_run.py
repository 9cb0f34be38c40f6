"""Run a batch on an instance; if it fails, run its requests one by one."""

from __future__ import annotations

import logging
import math
import queue
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from onward.errors import (
    DeadlineExceeded,
    ModelUnavailable,
    OnwardError,
    RequestExpired,
    RequestInvalid,
    ServingError,
    SessionClosed,
    WorkerDied,
)
from onward.serving.batching.batch import BatchLayout, Feeds, join_feeds, split_outputs
from onward.serving.batching.batch_check import one_line
from onward.serving.batching.batch_joining import JoinRule
from onward.serving.instance import Instance
from onward.serving.requests import Array, Done, InferRequest, SequencePart

Answer = dict[str, Array] | ServingError
Clock = Callable[[], float]
_LOG = logging.getLogger("onward.serving")


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request on its way through the queue; the scheduler reads its first fields."""

    key: Hashable
    rows: int  # that it counts in a batch: at least 1
    priority: int
    arrival: float
    deadline: float
    request: InferRequest
    done: Done
    feeds: dict[str, Array]
    outputs: tuple[str, ...] | None  # to compute; None: all
    true_rows: int  # along the batch axis
    lengths: Hashable = ()  # of the inputs that are padded
    cache_key: tuple[Any, ...] | None = None
    is_answered: bool = False  # before its run ended: at its deadline, or because the run is stuck

    @property
    def part(self) -> SequencePart | None:
        """Its place in a sequence."""
        return self.request.sequence


@dataclass(slots=True, eq=False)
class BatchRun:
    """A batch, its answers, and when each of its steps ended."""

    works: list[QueuedRequest]
    started: float
    joined: float = 0.0
    ran: float = 0.0
    split: float = 0.0
    answers: Sequence[Answer] = ()
    was_joined: bool = True  # False: its requests ran one by one
    due: float = math.inf  # when a request expires that runs, or the run counts as stuck
    stuck_at: float = math.inf
    is_stuck: bool = False
    compiles: bool = False  # it was found to, and may take longer
    instance: Instance | None = None  # that runs it, once it has started
    rule: JoinRule | None = None  # that formed it; None: one request waited

    @property
    def rows(self) -> int:
        """Rows of all of its requests."""
        return sum([work.true_rows for work in self.works])

    @property
    def elements(self) -> int:
        """Elements that its clients sent: padding is none."""
        return sum([array.size for work in self.works for array in work.feeds.values()])

    def forget_answered(self) -> None:
        """Leave out the requests that were answered before their run ended."""
        if not any(work.is_answered for work in self.works):
            return
        kept = [pair for pair in zip(self.works, self.answers) if not pair[0].is_answered]
        self.works = [work for work, _ in kept]
        self.answers = [answer for _, answer in kept]


class BatchRunner:
    """Runs batches on one instance."""

    def __init__(self, model: str, instance: Instance, layout: BatchLayout, clock: Clock) -> None:
        self._model, self._instance, self._layout, self._clock = model, instance, layout, clock

    def run(self, batch: BatchRun) -> None:
        """Fill in a batch's answers. Never raises."""
        works, batch.instance = batch.works, self._instance
        batch.started = batch.joined = batch.ran = self._clock()
        try:
            batch.answers = self._run_joined(batch, works)
        except BaseException as error:
            if len(works) == 1:
                batch.answers = [self._explain(error)]
            else:  # one of them may be at fault: the others must not suffer
                batch.was_joined = False
                batch.joined = batch.started
                batch.answers = [self._run_alone(work) for work in works]
            batch.ran = self._clock()
        batch.split = self._clock()

    def _run_joined(
        self, batch: BatchRun, works: Sequence[QueuedRequest]
    ) -> list[dict[str, Array]]:
        layout = self._layout
        if not layout.axes:
            batch.joined = self._clock()
            outputs = self._instance.run(works[0].feeds, works[0].outputs)
            batch.ran = self._clock()
            return [outputs]
        requests: list[Feeds] = [work.feeds for work in works]
        rows = [work.true_rows for work in works]
        feeds = join_feeds(layout, requests, rows)
        batch.joined = self._clock()
        outputs = self._instance.run(feeds, works[0].outputs)
        batch.ran = self._clock()
        return split_outputs(layout, outputs, requests, rows)

    def _run_alone(self, work: QueuedRequest) -> Answer:
        if work.is_answered:
            return RequestExpired("it was answered before its run ended")
        try:
            return self._run_joined(BatchRun([work], 0.0), [work])[0]
        except BaseException as error:
            return self._explain(error)

    def _explain(self, error: BaseException) -> ServingError:
        """The message to a client about a failed run."""
        if type(error) is not ServingError and isinstance(error, ServingError):
            return error
        reason = one_line(error)
        if not isinstance(error, OnwardError):
            reason = f"{type(error).__name__}: {reason}"
        if isinstance(error, (WorkerDied, SessionClosed)):
            return ModelUnavailable(
                f"model {self._model!r} stopped while it ran this request: {reason}",
                retry_after=1.0,
            )
        if isinstance(error, DeadlineExceeded):
            return RequestExpired(f"model {self._model!r} took too long: {reason}")
        return RequestInvalid(f"model {self._model!r} cannot run this request: {reason}")


class InstanceThread:
    """A thread that runs the batches of a shared queue on one instance.

    In the loop's thread, `finished` is called with each batch, and `ended` after the thread took
    None from the queue and closed its instance.
    """

    def __init__(
        self,
        name: str,
        instance: Instance,
        runner: BatchRunner,
        batches: queue.SimpleQueue[BatchRun | None],
        loop: AbstractEventLoop,
        finished: Callable[[BatchRun], None],
        ended: Callable[[Instance], None],
    ) -> None:
        self._instance, self._runner, self._batches = instance, runner, batches
        self._loop, self._finished, self._ended = loop, finished, ended
        # a daemon: a run that hangs must not keep the process alive
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        get, run, call = self._batches.get, self._runner.run, self._loop.call_soon_threadsafe
        try:
            while (batch := get()) is not None:
                run(batch)
                call(self._finished, batch)
                del batch  # its tensors would stay in memory until the next one
            close_instance(self._instance)
            call(self._ended, self._instance)
        except RuntimeError:  # the loop was closed: no request waits for an answer
            close_instance(self._instance)


def close_instance(instance: Instance) -> None:
    """Close an instance; a failure is only logged."""
    try:
        instance.close()
    except Exception:
        _LOG.exception("an instance cannot be closed")
