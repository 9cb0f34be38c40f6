"""Observer: the protocol of metrics, traces and logs of requests and batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class RequestTimes(NamedTuple):
    """Where the time of one request went, in seconds."""

    queue: float = 0.0  # from its arrival until its batch started
    join: float = 0.0  # joining and padding the inputs of the batch
    run: float = 0.0  # the model itself
    split: float = 0.0  # cutting the outputs
    batch_size: int = 0  # rows of the batch that it ran in
    traceparent: str = ""  # of the request, for telemetry


Answered = tuple[str, RequestTimes, Exception | None]  # a request's id, times and error


class Observer(Protocol):
    """Called in the event loop's thread; must be quick and must not raise."""

    def on_answers(self, model: str, version: str, answers: Sequence[Answered]) -> None:
        """The requests of a batch: as `on_request` for each of them."""
        ...

    def on_request(
        self,
        model: str,
        version: str,
        request_id: str,
        times: RequestTimes,
        error: Exception | None,
    ) -> None: ...

    def on_batch(self, model: str, version: str, requests: int, rows: int, run: float) -> None: ...

    def on_queue(self, model: str, version: str, length: int) -> None: ...


class NoObserver:
    """An observer that ignores everything."""

    def on_answers(self, model: str, version: str, answers: Sequence[Answered]) -> None:
        for request_id, times, error in answers:
            self.on_request(model, version, request_id, times, error)

    def on_request(
        self,
        model: str,
        version: str,
        request_id: str,
        times: RequestTimes,
        error: Exception | None,
    ) -> None:
        return None

    def on_batch(self, model: str, version: str, requests: int, rows: int, run: float) -> None:
        return None

    def on_queue(self, model: str, version: str, length: int) -> None:
        return None
