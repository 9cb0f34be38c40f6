"""Metrics of a server in Prometheus' text form; with Triton's names on request.

metrics = Metrics()                    # an Observer
metrics.watch(core.index, in_flight, stuck, joining)   # asked when the metrics are read
metrics.text()

Numbers are kept in plain lists, which cost a request about a microsecond; prometheus-client only
writes them. All methods are called in the event loop's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, exposition
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from onward.errors import ModelNotFound
from onward.serving.core import Json
from onward.serving.observer import Answered, RequestTimes
from onward.serving.operation.error_status import status_of
from onward.serving.operation.triton_metrics import triton_text

_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
)  # fmt: skip
_ROWS = tuple(float(2**power) for power in range(11))
_LABELS = ("model", "version")
_MOST_MODELS = 512  # versions of models; more are counted without a name

ModelVersion = tuple[str, str]
ReadCounts = Callable[[], Mapping[ModelVersion, int]]


class Histogram:
    """Counts of values up to each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts, as Prometheus has them."""
        total, found = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts):
            total += count
            found.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
        return found


class ModelCounts:
    """What was counted of one version of a model."""

    __slots__ = (
        "batch", "batches", "codes", "compute", "queue", "queue_length", "request", "row_sum",
        "rows", "run_sum",
    )  # fmt: skip

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.queue, self.compute = Histogram(_SECONDS), Histogram(_SECONDS)
        self.request, self.batch = Histogram(_SECONDS), Histogram(_SECONDS)
        self.rows = Histogram(_ROWS)
        self.batches = self.queue_length = self.row_sum = 0
        self.run_sum = 0.0


class Metrics:
    """Counts requests and batches by model and version, in a registry of its own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, triton_names: bool = False) -> None:
        self._counts: dict[ModelVersion, ModelCounts] = {}
        self._triton_names = triton_names
        self._index: Callable[[], list[Json]] = list
        self._in_flight: ReadCounts = dict
        self._stuck: ReadCounts = dict
        self._joining: ReadCounts = dict
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def watch(
        self,
        index: Callable[[], list[Json]],
        in_flight: ReadCounts = dict,
        stuck: ReadCounts = dict,
        joining: ReadCounts = dict,
    ) -> None:
        """Ask for models' states, unfinished requests, stuck instances and rules of joining."""
        self._index, self._in_flight, self._stuck = index, in_flight, stuck
        self._joining = joining

    def on_request(
        self,
        model: str,
        version: str,
        request_id: str,
        times: RequestTimes,
        error: Exception | None,
    ) -> None:
        if error is None:
            counts = self._counts.get((model, version)) or self._new(model, version)
            codes = counts.codes
            codes[200] = codes.get(200, 0) + 1
            compute = times.join + times.run + times.split
            counts.queue.observe(times.queue)
            counts.compute.observe(compute)
            counts.request.observe(times.queue + compute)
            counts.run_sum += times.run
            return
        if isinstance(error, ModelNotFound):
            model = version = ""  # names that clients invent must not fill the memory
        counts = self._counts.get((model, version)) or self._new(model, version)
        code = status_of(error)
        counts.codes[code] = counts.codes.get(code, 0) + 1

    def on_answers(self, model: str, version: str, answers: Sequence[Answered]) -> None:
        counts = self._counts.get((model, version)) or self._new(model, version)
        queue, compute, request = counts.queue, counts.compute, counts.request
        succeeded = 0
        for request_id, times, error in answers:
            if error is not None:
                self.on_request(model, version, request_id, times, error)
                continue
            succeeded += 1
            seconds = times.join + times.run + times.split
            queue.observe(times.queue)
            compute.observe(seconds)
            request.observe(times.queue + seconds)
            counts.run_sum += times.run
        if succeeded:
            counts.codes[200] = counts.codes.get(200, 0) + succeeded

    def on_batch(self, model: str, version: str, requests: int, rows: int, run: float) -> None:
        counts = self._counts.get((model, version)) or self._new(model, version)
        counts.batches += 1
        counts.row_sum += rows
        counts.rows.observe(rows)
        counts.batch.observe(run)

    def on_queue(self, model: str, version: str, length: int) -> None:
        counts = self._counts.get((model, version)) or self._new(model, version)
        counts.queue_length = length

    def text(self) -> bytes:
        """All metrics, as Prometheus reads them."""
        text = exposition.generate_latest(self._registry)
        return text + triton_text(self._counts) if self._triton_names else text

    def collect(self) -> Iterator[Metric]:
        """The metrics of all models, for prometheus-client."""
        codes = CounterMetricFamily(
            "onward_requests", "Requests by the HTTP status of their answer.",
            labels=(*_LABELS, "code"),
        )  # fmt: skip
        for key, counts in self._counts.items():
            for code, number in counts.codes.items():
                codes.add_metric([*key, str(code)], number)
        yield codes
        batches = CounterMetricFamily("onward_batches", "Batches that ran.", labels=_LABELS)
        queue = GaugeMetricFamily("onward_queue_length", "Requests that wait.", labels=_LABELS)
        for key, counts in self._counts.items():
            if key != ("", ""):
                batches.add_metric(key, counts.batches)
                queue.add_metric(key, counts.queue_length)
        yield from (batches, queue)
        yield _gauge("onward_in_flight_requests", "Requests that wait or run.", self._in_flight())
        yield _gauge("onward_stuck_instances", "Instances whose run does not end.", self._stuck())
        yield _gauge(
            "onward_join_rule", "Requests run: 0 alone, 1 with equal lengths, 2 with all.",
            self._joining(),
        )  # fmt: skip
        yield self._ready()
        yield self._histogram("onward_queue_seconds", "Time in the queue.", "queue")
        yield self._histogram(
            "onward_compute_seconds", "Time in a batch: joining, running, splitting.", "compute"
        )
        yield self._histogram("onward_request_seconds", "Queue and batch together.", "request")
        yield self._histogram("onward_batch_seconds", "Time of a batch in the model.", "batch")
        yield self._histogram("onward_batch_rows", "Rows of a batch.", "rows")

    def _histogram(self, name: str, explanation: str, field: str) -> Metric:
        family = HistogramMetricFamily(name, explanation, labels=_LABELS)
        for key, counts in self._counts.items():
            found: Histogram = getattr(counts, field)
            if any(found.counts):
                family.add_metric(key, found.buckets(), found.sum)
        return family

    def _ready(self) -> Metric:
        family = GaugeMetricFamily(
            "onward_model_ready", "1: the model answers; 0: it does not.", labels=_LABELS
        )
        for model, version, is_ready in _states(self._index()):
            family.add_metric([model, version], float(is_ready))
        return family

    def _new(self, model: str, version: str) -> ModelCounts:
        key = (model, version) if len(self._counts) < _MOST_MODELS else ("", "")
        return self._counts.setdefault(key, ModelCounts())


def _gauge(name: str, explanation: str, numbers: Mapping[ModelVersion, int]) -> Metric:
    family = GaugeMetricFamily(name, explanation, labels=_LABELS)
    for key, number in numbers.items():
        family.add_metric(key, number)
    return family


def _states(index: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, bool]]:
    for row in index:
        yield str(row["name"]), str(row.get("version", "")), row.get("state") == "READY"
