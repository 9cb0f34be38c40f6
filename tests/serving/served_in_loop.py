"""Served models in an event loop, for tests: submit requests, hold an instance, await answers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from onward.serving.batching.served_model import ServedModel
from onward.serving.instance import Instance
from onward.serving.observer import NoObserver, RequestTimes
from onward.serving.requests import InferRequest, InferResponse
from onward.serving.settings import ModelSettings
from tests.serving.instances import FunctionInstance, GatedInstance, doubler

GUARD = 60.0  # seconds; a test that reaches it has failed
Answer = InferResponse | Exception


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Log(NoObserver):
    """An observer that keeps what it was called with."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, RequestTimes, Exception | None]] = []
        self.batches: list[tuple[int, int]] = []
        self.lengths: list[int] = []

    def on_request(
        self, model: str, version: str, request_id: str, times: RequestTimes, error: Any
    ) -> None:
        self.requests.append((request_id, times, error))

    def on_batch(self, model: str, version: str, requests: int, rows: int, run: float) -> None:
        self.batches.append((requests, rows))

    def on_queue(self, model: str, version: str, length: int) -> None:
        self.lengths.append(length)


@asynccontextmanager
async def served(
    *instances: Instance, clock: Any = None, observer: Any = None, **values: Any
) -> AsyncIterator[ServedModel]:
    options = {} if clock is None else {"clock": clock}
    settings = ModelSettings.model_validate({"warm_up": False, **values})
    loop = asyncio.get_running_loop()
    model = ServedModel("m", "1", instances, settings, loop=loop, observer=observer, **options)
    try:
        await model.prepare()
        yield model
    finally:
        await model.close()


def request(value: float = 1.0, rows: int = 1, **values: Any) -> InferRequest:
    return InferRequest("m", {"x": np.full((rows, 2), value, np.float32)}, **values)


def submit(model: ServedModel, asked: InferRequest) -> asyncio.Future[Answer]:
    """A future of the answer; a second answer would fail the test."""
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    model.submit(asked, answer.set_result)
    return answer


async def infer(model: ServedModel, asked: InferRequest) -> Answer:
    return await asyncio.wait_for(submit(model, asked), GUARD)


async def gather(*answers: asyncio.Future[Answer]) -> list[Answer]:
    return await asyncio.wait_for(asyncio.gather(*answers), GUARD)


def first(answer: Answer, name: str = "y") -> float:
    assert isinstance(answer, InferResponse), answer
    return float(answer.outputs[name].reshape(-1)[0])


@asynccontextmanager
async def gated(
    instance: FunctionInstance | None = None, blocker: InferRequest | None = None, **values: Any
) -> AsyncIterator[tuple[ServedModel, GatedInstance, asyncio.Future[Answer]]]:
    """A model whose only instance runs a first request until its gate is opened."""
    gate = GatedInstance(instance or doubler())
    async with served(gate, **values) as model:
        gate.instance.ran.clear()
        gate.gate.clear()
        gate.is_running.clear()
        blocked = submit(model, blocker or request(0.0, id="blocker"))
        loop = asyncio.get_running_loop()
        try:
            assert await loop.run_in_executor(None, gate.is_running.wait, GUARD)
            yield model, gate, blocked
        finally:
            gate.gate.set()


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, run in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **values: Any) -> None:
        asyncio.run(test(*args, **values))

    return run
