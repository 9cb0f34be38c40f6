"""The seam between the repository and what it serves: a model with its queue, or an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from onward.serving.core import Json
from onward.serving.requests import Cancel, Done, InferRequest, TensorSpec

Clock = Callable[[], float]


class Served(Protocol):
    """One version of a model that requests are submitted to, such as a ServedModel."""

    @property
    def inputs(self) -> Sequence[TensorSpec]: ...

    @property
    def outputs(self) -> Sequence[TensorSpec]: ...

    @property
    def queue_length(self) -> int: ...

    @property
    def is_stuck(self) -> bool: ...

    @property
    def is_nearly_full(self) -> bool: ...

    @property
    def batching(self) -> Any: ...

    def submit(self, request: InferRequest, done: Done) -> Cancel: ...

    def statistics(self) -> Json: ...

    async def prepare(self) -> None: ...

    async def drain(self, timeout: float) -> None: ...

    async def close(self) -> None: ...


# ServedModel(name, version, instances, settings, loop=..., clock=..., observer=...)
ServedFactory = Callable[..., Served]
