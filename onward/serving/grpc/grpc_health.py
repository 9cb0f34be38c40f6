"""gRPC's health service: what load balancers and Kubernetes probe."""

from __future__ import annotations

import asyncio

from onward.errors import ModelNotFound
from onward.serving.core import Core
from onward.serving.grpc.grpc_call import GrpcCall, GrpcMethod
from onward.serving.grpc.grpc_messages import HEALTH, INFERENCE, message_class
from onward.serving.grpc.http2_stream import Received

_Request = message_class("grpc.health.v1.HealthCheckRequest")
_Response = message_class("grpc.health.v1.HealthCheckResponse")
_SERVICES = ("", INFERENCE, HEALTH)
WATCH_INTERVAL = 1.0  # seconds between two looks at the state that clients watch


class Health:
    """Methods of `grpc.health.v1.Health`: the server is serving while its core is ready."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._is_stopping = False
        self._watches: dict[GrpcCall, tuple[str, str]] = {}  # service and state of each
        self._timer: asyncio.TimerHandle | None = None

    def methods(self) -> dict[str, GrpcMethod]:
        """Each method of the service."""
        return {"Check": GrpcMethod(answer=self.check), "Watch": GrpcMethod(answer=self.watch)}

    def check(self, call: GrpcCall, data: Received) -> None:
        """The state now."""
        try:
            service = _Request.FromString(data).service
            if service not in _SERVICES:
                raise ModelNotFound(f"there is no service '{service}'")
            call.answer(_message(self._state(service)))
        except Exception as error:
            call.fail(error)

    def watch(self, call: GrpcCall, data: Received) -> None:
        """The state now, and again whenever it changes."""
        try:
            service = _Request.FromString(data).service
        except Exception as error:
            call.fail(error)
            return
        call.on_cancel = lambda: self._watches.pop(call, None) and None
        self._watches[call] = (service, "")
        self._look()

    def stop(self) -> None:
        """Report that the server ends, and end the watches."""
        self._is_stopping = True
        self._look()
        for call in list(self._watches):
            call.finish()
        self._watches.clear()

    def _look(self) -> None:
        """Send the states that have changed, and look again later while any is watched."""
        for call, (service, before) in list(self._watches.items()):
            state = self._state(service)
            if state != before:
                self._watches[call] = (service, state)
                call.send(_message(state))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watches and not self._is_stopping:
            self._timer = asyncio.get_running_loop().call_later(WATCH_INTERVAL, self._look)

    def _state(self, service: str) -> str:
        if service not in _SERVICES:
            return "SERVICE_UNKNOWN"
        return "SERVING" if self._core.is_ready and not self._is_stopping else "NOT_SERVING"


def _message(state: str) -> bytes:
    data: bytes = _Response(status=state).SerializeToString()
    return data
