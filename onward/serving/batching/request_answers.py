"""Answer the requests of one model: build responses, count them, call the observer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from onward.errors import ServingError
from onward.serving.batching.batch_run import BatchRun, Clock, QueuedRequest
from onward.serving.batching.model_statistics import ModelStatistics
from onward.serving.observer import Answered, Observer, RequestTimes
from onward.serving.requests import Array, Done, InferRequest, InferResponse
from onward.sessions.result_cache import ResultCache

_LOG = logging.getLogger("onward.serving")


class RequestAnswers:
    """Calls `done` of each request once, in the loop's thread."""

    def __init__(
        self,
        statistics: ModelStatistics,
        observer: Observer | None,
        cache: ResultCache | None,
        outputs: Sequence[str],
        has_hidden_outputs: bool,
        clock: Clock,
        wall_clock: Callable[[], float],
    ) -> None:
        self._model, self._version = statistics.name, statistics.version
        self._statistics, self._observer, self._cache = statistics, observer, cache
        self._outputs, self._has_hidden = tuple(outputs), has_hidden_outputs
        self._clock, self._wall_clock = clock, wall_clock

    def refuse(
        self, request: InferRequest, done: Done, arrival: float, error: ServingError
    ) -> None:
        """Answer a request that does not run."""
        waited = self._clock() - arrival
        self._statistics.add_failure(waited)
        if self._observer is not None:
            times = RequestTimes(queue=waited)
            self._observer.on_request(self._model, self._version, request.id, times, error)
        _call(done, error)

    def look_up(self, work: QueuedRequest) -> bool:
        """Answer a request from the cache; False if it has to run."""
        if self._cache is None:
            return False
        work.cache_key = self._cache.key(work.outputs, work.feeds)
        if work.cache_key is None:
            return False
        found = self._cache.get(work.cache_key)
        seconds = self._clock() - work.arrival
        self._statistics.add_cache_lookup(seconds, is_hit=found is not None)
        if found is None:
            return False
        self._statistics.add_requests(0.0, seconds, 1)
        self._statistics.last_inference = self._wall_clock()
        if self._observer is not None:
            times = RequestTimes()
            self._observer.on_request(self._model, self._version, work.request.id, times, None)
        self._respond(work, dict(zip(work.outputs or self._outputs, found)))
        return True

    def finish(self, batch: BatchRun) -> None:
        """Answer the requests of a batch that ran."""
        rows, count = batch.rows, len(batch.works)
        batch.forget_answered()
        self._count(batch)
        if self._observer is not None:
            run = batch.ran - batch.joined
            self._observer.on_batch(self._model, self._version, count, rows, run)
            self._tell(self._observer, batch, rows)
        for work, answer in zip(batch.works, batch.answers):
            if isinstance(answer, ServingError):
                _call(work.done, answer)
                continue
            if work.cache_key is not None and self._cache is not None:
                names = work.outputs or self._outputs
                self._cache.put(work.cache_key, [answer[name] for name in names])
            self._respond(work, answer)

    def _respond(self, work: QueuedRequest, answer: dict[str, Array]) -> None:
        request = work.request
        if request.outputs and len(answer) > 1:
            answer = {each.name: answer[each.name] for each in request.outputs}
        elif self._has_hidden:
            answer = {name: answer[name] for name in self._outputs}
        _call(work.done, InferResponse(self._model, self._version, answer, request.id))

    def _count(self, batch: BatchRun) -> None:
        now, started, works = self._clock(), batch.started, batch.works
        succeeded = rows = 0
        queued = total = 0.0
        for work, answer in zip(works, batch.answers):
            if isinstance(answer, ServingError):
                self._statistics.add_failure(now - work.arrival)
                continue
            succeeded += 1
            rows += work.true_rows
            queued += started - work.arrival
            total += now - work.arrival
        if not succeeded:
            return
        steps = (batch.joined - started, batch.ran - batch.joined, batch.split - batch.ran)
        statistics = self._statistics
        statistics.last_inference = self._wall_clock()
        statistics.add_requests(queued, total, succeeded)
        if batch.was_joined:
            statistics.add_batch(succeeded, rows, rows, steps, 1)
            return
        for work, answer in zip(works, batch.answers):  # they ran one by one
            if not isinstance(answer, ServingError):
                share = [step / len(works) for step in steps]
                statistics.add_batch(1, work.true_rows, work.true_rows, share, 1)

    def _tell(self, observer: Observer, batch: BatchRun, rows: int) -> None:
        model, version = self._model, self._version
        join, run = batch.joined - batch.started, batch.ran - batch.joined
        split = batch.split - batch.ran
        answers: list[Answered] = []
        for work, answer in zip(batch.works, batch.answers):
            size, request = rows if batch.was_joined else work.true_rows, work.request
            waited = batch.started - work.arrival
            times = RequestTimes(waited, join, run, split, size, request.traceparent)
            error = answer if isinstance(answer, ServingError) else None
            answers.append((request.id, times, error))
        observer.on_answers(model, version, answers)


def _call(done: Done, answer: InferResponse | ServingError) -> None:
    try:
        done(answer)
    except Exception:  # of one client: the other answers must still go out
        _LOG.exception("a request cannot be answered")
