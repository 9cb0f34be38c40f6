"""A served model without a queue, for tests of what is around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from onward.serving.instance import Instance
from onward.serving.requests import Cancel, Done, InferRequest, InferResponse, TensorSpec
from onward.serving.settings import ModelSettings


class FakeServed:
    """Runs each request alone, in the loop's thread, one turn of the loop later."""

    made: list[FakeServed]  # by the factory of a test

    def __init__(
        self,
        name: str,
        version: str,
        instances: Sequence[Instance],
        settings: ModelSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        observer: Any,
    ) -> None:
        self.name, self.version, self.instances, self.settings = name, version, instances, settings
        self.inputs: Sequence[TensorSpec] = instances[0].inputs
        self.outputs: Sequence[TensorSpec] = instances[0].outputs
        self.queue_length, self.is_nearly_full, self.is_stuck = 0, False, False
        self.batching: Any = SimpleNamespace(max_size=0, axes={})
        self.events: list[str] = []
        self.requests: list[InferRequest] = []
        self.cancelled = 0
        self.held: list[Callable[[], None]] | None = None  # a list: requests wait in it
        self._loop, self._is_closed = loop, False

    async def prepare(self) -> None:
        self.events.append("prepare")

    def submit(self, request: InferRequest, done: Done) -> Cancel:
        assert not self._is_closed, "a request came to a closed model"
        self.requests.append(request)
        self.queue_length += 1

        def run() -> None:
            self.queue_length -= 1
            asked = [each.name for each in request.outputs] or None
            try:
                outputs = self.instances[0].run(request.inputs, asked)
            except Exception as error:
                done(error)
            else:
                done(InferResponse(self.name, self.version, outputs, request.id))

        if self.held is not None:
            self.held.append(run)
        else:
            self._loop.call_soon(run)
        return self._cancel

    def _cancel(self) -> None:
        self.cancelled += 1

    def statistics(self) -> dict[str, Any]:
        return {"inference_count": len(self.requests)}

    async def drain(self, timeout: float) -> None:
        self.events.append("drain")
        while self.queue_length and self.held is None:
            await asyncio.sleep(0)

    async def close(self) -> None:
        self.events.append("close")
        self._is_closed = True
        for instance in self.instances:
            instance.close()
