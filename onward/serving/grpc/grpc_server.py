"""The gRPC server: inference, health and reflection on one port.

server = GrpcServer(core, settings, shared_memory=SharedMemoryRegions(), access=None)
await server.start()   # server.port
await server.stop(grace=30)
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from onward.errors import FileMissing, NotSupported, OptionError, RequestExpired, RequestTooLarge
from onward.serving.accept_waiting import DRAIN_GRACE, close_listening
from onward.serving.core import Core
from onward.serving.grpc import grpc_reflection
from onward.serving.grpc.grpc_call import GrpcCall, GrpcMethod
from onward.serving.grpc.grpc_control import GrpcControl
from onward.serving.grpc.grpc_health import Health
from onward.serving.grpc.grpc_messages import HEALTH, INFERENCE, REFLECTION
from onward.serving.grpc.grpc_service import AccessCheck, GrpcService
from onward.serving.grpc.http2_connection import MAX_HEADER_BYTES, Http2Connection
from onward.serving.grpc.http2_headers import Header
from onward.serving.grpc.http2_stream import Stream
from onward.serving.settings import ServingSettings
from onward.serving.shared_memory import SharedMemoryRegions

_SWEEP_SECONDS = 1.0


class GrpcServer:
    """A server of one core on the port of the settings. `clock` gives seconds."""

    def __init__(
        self,
        core: Core,
        settings: ServingSettings,
        *,
        shared_memory: SharedMemoryRegions,
        access: AccessCheck | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._service = GrpcService(
            core, GrpcControl(core, settings, shared_memory), shared_memory, access
        )
        self._health = Health(core)
        self._methods = self._all_methods()
        self._connections: set[Http2Connection] = set()
        self._server: asyncio.Server | None = None
        self._accept: Callable[[socket.socket], Awaitable[Any]]
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_empty = asyncio.Event()
        self._port = 0

    @property
    def port(self) -> int:
        """The port that it listens on, once it is started."""
        return self._port

    async def start(self) -> None:
        """Listen, and answer from now on."""
        settings = self._settings
        context = _tls_context(settings)
        loop = asyncio.get_running_loop()
        handshake = max(0.1, settings.header_timeout) if context else None
        self._accept = lambda client: loop.connect_accepted_socket(
            self._connection, client, ssl=context, ssl_handshake_timeout=handshake
        )
        try:
            self._server = await loop.create_server(
                self._connection,
                settings.host,
                settings.grpc_port or 0,
                ssl=context,
                ssl_handshake_timeout=handshake,
                backlog=1024,
            )
        except OSError:
            raise OptionError(
                f"gRPC cannot listen on {settings.host}:{settings.grpc_port}: the port is in use, "
                "or the address is not of this machine\nchoose another port with --grpc-port"
            ) from None
        self._port = self._server.sockets[0].getsockname()[1]
        self._sweep()

    async def stop(self, grace: float) -> None:
        """Accept no more calls, answer the open ones within `grace` seconds, and close.

        Calls of clients that are connected, and were not accepted yet, are answered too.
        """
        server, self._server = self._server, None
        if server is None:
            return
        await close_listening(server, self._accept)
        self._health.stop()
        self._service.stop()
        for connection in list(self._connections):
            connection.stop()
        silent = min(DRAIN_GRACE, grace)
        if not await self._wait_closed(silent):
            self._service.stop()  # streams that were opened meanwhile
            for connection in list(self._connections):
                connection.stop_silent()
            await self._wait_closed(grace - silent)
        for connection in list(self._connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def _wait_closed(self, timeout: float) -> bool:
        if not self._connections:
            return True
        self._is_empty.clear()
        try:
            await asyncio.wait_for(self._is_empty.wait(), timeout)
        except TimeoutError:
            return False
        return True

    def _all_methods(self) -> dict[bytes, GrpcMethod]:
        services = {
            INFERENCE: self._service.methods(),
            HEALTH: self._health.methods(),
            REFLECTION: grpc_reflection.methods(),
            grpc_reflection.REFLECTION_ALPHA: grpc_reflection.methods(),
        }
        return {
            f"/{service}/{name}".encode(): method
            for service, methods in services.items()
            for name, method in methods.items()
        }

    def _connection(self) -> Http2Connection:
        return Http2Connection(self._open_call, self._clock, self._add, self._remove)

    def _open_call(self, stream: Stream, headers: list[Header]) -> GrpcCall:
        found = dict(headers)
        path = found.get(b":path", b"")
        method = self._methods.get(path, _UNKNOWN)
        call = GrpcCall(stream, found, method, self._settings.max_body_bytes)
        if method is _UNKNOWN:
            call.fail(NotSupported(f"there is no method {path.decode('latin-1')}"))
        elif sum(map(len, found.values())) > MAX_HEADER_BYTES:
            call.fail(
                RequestTooLarge(
                    f"the metadata of the call has more than {MAX_HEADER_BYTES:,} bytes"
                )
            )
        elif not found.get(b"content-type", b"").startswith(b"application/grpc"):
            call.fail(NotSupported("the content-type is not application/grpc"))
        return call

    def _add(self, connection: Http2Connection) -> bool:
        self._connections.add(connection)
        return len(self._connections) <= self._settings.max_connections

    def _remove(self, connection: Http2Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._is_empty.set()

    def _sweep(self) -> None:
        """Close connections that are idle, and calls that do not arrive."""
        now, settings = self._clock(), self._settings
        for connection in list(self._connections):
            late = now - connection.last_used
            if not connection.has_preface:
                if late > settings.header_timeout:
                    connection.close()
            elif not connection.streams:
                if late > settings.keep_alive + settings.header_timeout:
                    connection.close()  # it did not leave when it was asked to
                elif late > settings.keep_alive:
                    connection.stop()
            else:
                _end_late_calls(connection, now - settings.header_timeout)
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep)


_UNKNOWN = GrpcMethod(answer=lambda call, data: None)


def _end_late_calls(connection: Http2Connection, before: float) -> None:
    for stream in list(connection.streams.values()):
        call = stream.handler
        if (
            stream.started < before
            and not stream.has_ended
            and isinstance(call, GrpcCall)
            and call.is_unary
        ):
            call.fail(RequestExpired("the message did not arrive in time"))


def _tls_context(settings: ServingSettings) -> ssl.SSLContext | None:
    """The certificate and key of TLS, if they are set."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    for path in (settings.tls_certificate, settings.tls_key):
        if not Path(path).is_file():
            raise FileMissing(
                f"the TLS file {path} does not exist\ncheck tls_certificate and tls_key"
            )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    context.set_alpn_protocols(["h2"])
    return context
