"""Start a server's core and transports, and stop them without losing an accepted request.

server = RunningServer({"digits": session}, ServingSettings(), ModelSettings())
info = await server.start()
await server.stop()
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from onward.message_text import suggest_names
from onward.serving.access import Access, KeyAccess
from onward.serving.batching.served_model import ServedModel
from onward.serving.grpc.grpc_server import GrpcServer
from onward.serving.http.http_server import HttpServer
from onward.serving.models.open_model import ALL_MODELS
from onward.serving.observer import Observer
from onward.serving.operation.live_figures import LiveFigures
from onward.serving.operation.live_page.live_routes import live_routes
from onward.serving.operation.metrics import Metrics
from onward.serving.operation.observers import combine_observers
from onward.serving.operation.request_log import RequestLog, make_log_handler
from onward.serving.operation.telemetry import Telemetry, open_telemetry
from onward.serving.server_core import ServerCore
from onward.serving.server_info import ServedModelInfo, ServerInfo
from onward.serving.settings import ModelSettings, ServingSettings
from onward.serving.shared_memory import SharedMemoryRegions

Clock = Callable[[], float]
# A file or folder, or sessions and functions by the names that they are served under.
Source = str | os.PathLike[str] | Mapping[str, Any]

LOGGER = logging.getLogger("onward.serving")


class RunningServer:
    """Models, HTTP and gRPC as one; used in one event loop."""

    def __init__(
        self,
        source: Source,
        settings: ServingSettings,
        model_settings: ModelSettings,
        *,
        clock: Clock = time.monotonic,
    ) -> None:
        self._source, self._settings, self._model_settings = source, settings, model_settings
        self._clock = clock
        self._metrics = Metrics(settings.triton_metrics)
        self._figures = LiveFigures(clock)
        self._shared_memory = SharedMemoryRegions()
        self._telemetry: Telemetry | None = None
        self._log_handler: logging.Handler | None = None
        self._core: ServerCore | None = None
        self._https: list[HttpServer] = []
        self._grpc: GrpcServer | None = None

    async def start(self) -> ServerInfo:
        """Load the models, then listen. What was started is stopped again if it fails."""
        try:
            return await self._start()
        except BaseException:
            await self.stop(0)
            raise

    async def _start(self) -> ServerInfo:
        settings = self._settings
        self._log_handler = make_log_handler(settings.log_format, sys.stderr)
        LOGGER.addHandler(self._log_handler)
        LOGGER.setLevel(logging.INFO)
        loop = asyncio.get_running_loop()
        core = ServerCore(
            _with_defaults(settings, self._model_settings),
            loop=loop,
            clock=self._clock,
            observer=combine_observers(self._observers()),
        )
        self._core = core
        if isinstance(self._source, Mapping):
            for name, model in self._source.items():
                await core.add(name, model)
        else:
            await core.open(self._source)
        for name in sorted({*settings.models} - {*core.repository.table.models, ALL_MODELS}):
            known = suggest_names(name, core.repository.table.models, "the models are")
            LOGGER.warning("settings are given for model %r, which is not there: %s", name, known)
        self._metrics.watch(
            core.index, lambda: _in_flight(core), lambda: _stuck(core), lambda: _joining(core)
        )
        access = Access(settings, self._clock)
        routes = live_routes(core, self._figures, lambda: _joining(core))
        for is_admin in (False, True) if settings.admin_port is not None else (False,):
            http = HttpServer(
                core,
                settings,
                access=access,
                shared_memory=self._shared_memory,
                metrics=self._metrics.text,
                extra_routes=routes,
                admin=is_admin,
            )
            await http.start()
            self._https.append(http)
        if settings.grpc_port is not None:
            checks = None if access.is_open else KeyAccess(access)
            grpc = GrpcServer(core, settings, shared_memory=self._shared_memory, access=checks)
            await grpc.start()
            self._grpc = grpc
        return self._info(core)

    def _observers(self) -> list[Observer]:
        settings = self._settings
        observers: list[Observer] = [self._metrics, self._figures]
        if settings.access_log:
            observers.append(RequestLog())
        if settings.open_telemetry is not None:
            self._telemetry = open_telemetry(settings.open_telemetry, time.time_ns)
            observers.append(self._telemetry)
        return observers

    def _info(self, core: ServerCore) -> ServerInfo:
        host = _reachable(self._settings.host)
        urls = [f"{http.scheme}://{host}:{http.port}" for http in self._https]
        return ServerInfo(
            http_url=urls[0],
            grpc_address=None if self._grpc is None else f"{host}:{self._grpc.port}",
            admin_url=urls[-1],
            models=[
                ServedModelInfo(
                    model.name,
                    str(version.number),
                    list(served.inputs),
                    list(served.outputs),
                    str(served.batching),
                    isinstance(served, ServedModel) and served.keeps_sequences,
                )
                for model, version, served in core.repository.table.served()
            ],
            needs_key=bool(self._settings.api_keys),
        )

    async def stop(self, timeout: float | None = None) -> None:
        """Not ready, accept nothing more, answer what was accepted, close. Twice is fine."""
        timeout = self._settings.drain_timeout if timeout is None else timeout
        end = self._clock() + timeout
        core, self._core = self._core, None
        https, self._https = self._https, []
        grpc, self._grpc = self._grpc, None
        for http in https:
            await http.stop_accepting()
        waiting = [http.stop(max(0.0, end - self._clock())) for http in https]
        if grpc is not None:
            waiting.append(grpc.stop(max(0.0, end - self._clock())))
        await asyncio.gather(*waiting)
        if core is not None:
            await core.drain(max(0.0, end - self._clock()))
            await core.close()
        self._shared_memory.close()
        if self._telemetry is not None:
            telemetry, self._telemetry = self._telemetry, None
            await asyncio.to_thread(telemetry.close)
        if self._log_handler is not None:
            LOGGER.removeHandler(self._log_handler)
            self._log_handler = None


def _with_defaults(server: ServingSettings, model: ModelSettings) -> ServingSettings:
    """The server's settings, with those that were given for all models."""
    given = model.model_dump(include=model.model_fields_set)
    every = {**given, **server.models.get(ALL_MODELS, {})}
    return server.model_copy(update={"models": {**server.models, ALL_MODELS: every}})


def _in_flight(core: ServerCore) -> dict[tuple[str, str], int]:
    return {
        (model.name, str(version.number)): served.in_flight
        for model, version, served in core.repository.table.served()
        if isinstance(served, ServedModel)
    }


def _stuck(core: ServerCore) -> dict[tuple[str, str], int]:
    return {
        (model.name, str(version.number)): served.stuck_instances
        for model, version, served in core.repository.table.served()
        if isinstance(served, ServedModel)
    }


def _joining(core: ServerCore) -> dict[tuple[str, str], int]:
    return {
        (model.name, str(version.number)): int(served.joining)
        for model, version, served in core.repository.table.served()
        if isinstance(served, ServedModel)
    }


def _reachable(host: str) -> str:
    """An address that a client on this machine can use."""
    if host in ("0.0.0.0", ""):
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's event loop, or asyncio's where uvloop is not installed (Windows)."""
    with contextlib.suppress(ImportError):
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()
