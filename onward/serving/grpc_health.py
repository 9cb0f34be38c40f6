"""gRPC's health service: what load balancers and Kubernetes probe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from onward.serving.core import Core
from onward.serving.grpc_messages import (
    HEALTH,
    INFERENCE,
    Message,
    input_class,
    message_class,
    service_methods,
)

_Response = message_class("grpc.health.v1.HealthCheckResponse")
_SERVICES = ("", INFERENCE, HEALTH)
WATCH_INTERVAL = 1.0  # seconds between two looks at the state that a client watches


class Health:
    """Handlers of `grpc.health.v1.Health`: the server is serving while its core is ready."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Report that the server ends, and end the watches."""
        self._stopping.set()

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """A handler for each method of the service."""
        reads = input_class(service_methods(HEALTH)["Check"]).FromString
        return {
            "Check": grpc.unary_unary_rpc_method_handler(
                self.check, reads, _Response.SerializeToString
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(
                self.watch, reads, _Response.SerializeToString
            ),
        }

    async def check(self, message: Message, context: Any) -> Message:
        """The state now."""
        if message.service not in _SERVICES:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"there is no service '{message.service}'"
            )
        return _Response(status=self._status(message.service))

    async def watch(self, message: Message, context: Any) -> AsyncIterator[Message]:
        """The state now, and again whenever it changes."""
        last = None
        while True:
            is_last = self._stopping.is_set()
            status = self._status(message.service)
            if status != last:
                last = status
                yield _Response(status=status)
            if is_last:
                return
            try:
                await asyncio.wait_for(self._stopping.wait(), WATCH_INTERVAL)
            except TimeoutError:
                continue

    def _status(self, service: str) -> str:
        if service not in _SERVICES:
            return "SERVICE_UNKNOWN"
        return "SERVING" if self._core.is_ready and not self._stopping.is_set() else "NOT_SERVING"
