"""Serve a graph of models as one model: each part has its own queue and batches on its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from onward.errors import ModelUnavailable, OptionError, RequestInvalid, ServingError
from onward.serving.batching.batch import BatchLayout
from onward.serving.batching.batching import Batching
from onward.serving.batching.request_check import RequestCheck
from onward.serving.core import Json
from onward.serving.models.ensemble_graph import EnsembleGraph, EnsembleStep, Signature, check_parts
from onward.serving.models.served import Clock
from onward.serving.observer import NoObserver, Observer, RequestTimes
from onward.serving.requests import (
    Array,
    Cancel,
    Done,
    InferRequest,
    InferResponse,
    RequestedOutput,
)

Submit = Callable[[InferRequest, Done], Cancel]
_STATES = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True)
class PartBatching:
    """The batch size that an ensemble declares; its parts batch on their own."""

    max_size: int

    @property
    def axes(self) -> dict[str, int]:
        return {}


class Ensemble:
    """An ensemble that is served, with the interface of a ServedModel.

    `submit` and `signature` are those of the repository, so that parts may be reloaded.
    """

    def __init__(
        self,
        graph: EnsembleGraph,
        version: str,
        submit: Submit,
        signature: Signature,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        observer: Observer | None = None,
        wall_clock: Clock = time.time,
    ) -> None:
        self.graph, self.version = graph, version
        self.batching = PartBatching(graph.max_batch_size)
        self.inputs, self.outputs = list(graph.inputs), list(graph.outputs)
        self._submit, self._signature = submit, signature
        self._loop, self._clock, self._wall_clock = loop, clock, wall_clock
        self._last_inference = 0.0
        self._observer = observer or NoObserver()
        self._running: set[_Run] = set()
        self._idle: asyncio.Event | None = None
        self._is_closed = False
        self._counts = {state: [0, 0.0] for state in _STATES}
        self._names = {spec.name for spec in self.outputs}
        self._check_tensors = _tensor_check(graph)

    def find_problem(self) -> str:
        """Why the ensemble cannot run now: a part is missing or does not fit. "" if it can."""
        try:
            check_parts(self.graph, self._signature)
        except OptionError as error:
            return str(error)
        return ""

    @property
    def queue_length(self) -> int:
        """0: requests wait in the queues of the parts."""
        return 0

    @property
    def is_nearly_full(self) -> bool:
        return False

    @property
    def is_stuck(self) -> bool:
        """False: its parts may be."""
        return False

    async def prepare(self) -> None:
        """Check the parts."""
        check_parts(self.graph, self._signature)

    def submit(self, request: InferRequest, done: Done) -> Cancel:
        """Start the steps whose tensors are there; `done` when all outputs are, or at an error."""
        start = self._clock()
        try:
            if self._is_closed:
                raise ModelUnavailable(f"ensemble {self.graph.name!r} is being unloaded")
            self._check(request)
        except ServingError as error:
            self._count(request, start, error)
            done(error)
            return _nothing
        run = _Run(self, request, done, start)
        self._running.add(run)
        run.advance()
        return run.cancel

    def statistics(self) -> Json:
        """Triton's ModelStatistics, as JSON."""
        count = self._counts["success"][0]
        stats = {
            name: {"count": int(n), "ns": round(seconds * 1e9)}
            for name, (n, seconds) in self._counts.items()
        }
        return {
            "name": self.graph.name,
            "version": self.version,
            "last_inference": round(self._last_inference * 1e3),
            "inference_count": int(count),
            "execution_count": int(count),
            "inference_stats": stats,
            "batch_stats": [],
        }

    async def drain(self, timeout: float) -> None:
        """Accept nothing more, and wait for the requests that run."""
        self._is_closed = True
        if not self._running:
            return
        self._idle = asyncio.Event()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return

    async def close(self) -> None:
        """Answer what still runs with an error."""
        self._is_closed = True
        for run in list(self._running):
            run.finish(ModelUnavailable(f"ensemble {self.graph.name!r} was unloaded"))

    def _check(self, request: InferRequest) -> None:
        names = {spec.name for spec in self.inputs}
        for name in request.inputs:
            if name not in names:
                raise RequestInvalid(
                    f"unexpected inference input {name!r} for model {self.graph.name!r}"
                )
        for spec in self.inputs:
            if spec.name not in request.inputs and not spec.is_optional:
                raise RequestInvalid(
                    f"expected {len(self.inputs)} inputs but got {len(request.inputs)} inputs "
                    f"for model {self.graph.name!r}\nmissing: {spec.name!r}"
                )
        for output in request.outputs:
            if output.name not in self._names:
                raise RequestInvalid(
                    f"unexpected inference output {output.name!r} for model {self.graph.name!r}"
                )
        self._check_tensors(request)

    def _end(self, run: _Run, error: Exception | None) -> None:
        self._running.discard(run)
        self._count(run.request, run.start, error)
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._idle is not None and not self._running:
            self._idle.set()

    def _count(self, request: InferRequest, start: float, error: Exception | None) -> None:
        seconds = self._clock() - start
        kept = self._counts["fail" if error is not None else "success"]
        kept[0] += 1
        kept[1] += seconds
        self._last_inference = self._wall_clock()
        times = RequestTimes(run=seconds, batch_size=1, traceparent=request.traceparent)
        self._observer.on_request(self.graph.name, self.version, request.id, times, error)


class _Run:
    """One request on its way through the graph."""

    def __init__(self, ensemble: Ensemble, request: InferRequest, done: Done, start: float) -> None:
        self.ensemble, self.request, self.start = ensemble, request, start
        self._done: Done | None = done
        self._tensors: dict[str, Array] = dict(request.inputs)
        self._waiting = list(ensemble.graph.steps)
        self._cancels: dict[int, Cancel] = {}

    def advance(self) -> None:
        """Submit the steps that have all their tensors."""
        ready = [step for step in self._waiting if self._has_tensors(step)]
        self._waiting = [step for step in self._waiting if step not in ready]
        for step in ready:
            if self._done is None:
                return
            place = len(self._cancels)
            self._cancels[place] = _nothing
            cancel = self.ensemble._submit(self._part_request(step), partial(self._receive, step))
            self._cancels[place] = cancel

    def cancel(self) -> None:
        """Drop the request; it is never done."""
        self._stop()
        self.ensemble._running.discard(self)
        self.ensemble._stop_waiting()

    def finish(self, result: InferResponse | Exception) -> None:
        """Answer the request, once."""
        done = self._done
        if done is None:
            return
        self._stop()
        self.ensemble._end(self, result if isinstance(result, Exception) else None)
        done(result)

    def _stop(self) -> None:
        self._done = None
        for cancel in self._cancels.values():
            cancel()
        self._cancels.clear()

    def _has_tensors(self, step: EnsembleStep) -> bool:
        optional = {spec.name for spec in self.ensemble.inputs if spec.is_optional}
        return all(t in self._tensors or t in optional for t in step.inputs.values())

    def _part_request(self, step: EnsembleStep) -> InferRequest:
        request, given = self.request, self._tensors
        spent = self.ensemble._clock() - self.start
        left = None if request.timeout is None else max(request.timeout - spent, 1e-9)
        return replace(
            request,
            model=step.model,
            version=step.version,
            inputs={name: _read_only(given[t]) for name, t in step.inputs.items() if t in given},
            outputs=tuple(RequestedOutput(name) for name in step.outputs),
            timeout=left,
        )

    def _receive(self, step: EnsembleStep, found: InferResponse | Exception) -> None:
        if self._done is None:
            return
        if isinstance(found, Exception):
            self.finish(_named(self.ensemble.graph.name, step.model, found))
            return
        for name, tensor in step.outputs.items():
            self._tensors[tensor] = _as_input(found.outputs[name])
        if self._waiting:
            self.advance()
        outputs = [spec.name for spec in self.ensemble.outputs]
        if self._done is not None and all(name in self._tensors for name in outputs):
            asked = [each.name for each in self.request.outputs] or outputs
            self.finish(
                InferResponse(
                    self.ensemble.graph.name,
                    self.ensemble.version,
                    {name: self._tensors[name] for name in asked},
                    self.request.id,
                )
            )


def _named(ensemble: str, model: str, error: Exception) -> Exception:
    """An error of a part, with the ensemble's name where that is a ServingError."""
    if not isinstance(error, ServingError):
        return error
    text = f"in ensemble {ensemble!r}, {error}"
    return type(error)(text, retry_after=error.retry_after)


def _tensor_check(graph: EnsembleGraph) -> RequestCheck:
    """The check of types, shapes and rows against what the ensemble declares; bytes stay bytes."""
    inputs = [replace(spec, is_binary=True) for spec in graph.inputs]
    axes = {spec.name: 0 for spec in inputs} if graph.max_batch_size else {}
    batching = Batching(graph.max_batch_size, BatchLayout(axes))
    return RequestCheck(graph.name, inputs, graph.outputs, batching)


def _read_only(array: Array) -> Array:
    """The same elements, which other steps and the answer need as they are."""
    found = array.view()
    found.flags.writeable = False
    return found


def _as_input(array: Array) -> Array:
    """An output as an input of the next model: texts are bytes there. Others are not copied."""
    if array.dtype.kind not in "OUS":
        return array
    flat: list[Any] = array.reshape(-1).tolist()
    found = np.empty(len(flat), object)
    found[:] = [each if isinstance(each, bytes) else str(each).encode() for each in flat]
    return found.reshape(array.shape)


def _nothing() -> None:
    """The cancellation of a request that is answered already."""
