"""The HTTP server: the Open Inference Protocol v2 over HTTP/1.1, with or without TLS.

server = HttpServer(core, settings, access=Access(settings, time.monotonic))
await server.start()
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.routing import BaseRoute

from onward.errors import OptionError
from onward.serving.accept_waiting import close_listening
from onward.serving.access import Access
from onward.serving.core import Core
from onward.serving.http.connection_limits import Connections
from onward.serving.http.http_protocol import HttpConnection
from onward.serving.http.http_routes import Metrics, RouteSources, make_app
from onward.serving.http.http_service import HttpService
from onward.serving.settings import ServingSettings
from onward.serving.shared_regions import SharedRegions

_BACKLOG = 2048
_SECONDS_BETWEEN_SWEEPS = 1.0


class HttpServer:
    """One port. With `admin`, the admin port: all routes but infer.

    If the settings have an admin port, the main port has no metrics, no load and no unload.
    """

    def __init__(
        self,
        core: Core,
        settings: ServingSettings,
        *,
        access: Access,
        shared_memory: SharedRegions | None = None,
        metrics: Metrics | None = None,
        extra_routes: Sequence[BaseRoute] = (),
        admin: bool = False,
    ) -> None:
        self._settings = settings
        self._wanted_port = (settings.admin_port or 0) if admin else settings.http_port
        self._connections = Connections(settings.max_connections)
        self._sources = RouteSources(
            core,
            settings,
            is_draining=lambda: self._connections.is_draining,
            shared_memory=shared_memory,
            metrics=metrics,
            has_infer=not admin,
            has_admin=admin or settings.admin_port is None,
        )
        self._app = make_app(self._sources, extra_routes)
        self._access = access
        self._server: asyncio.Server | None = None
        self._accept: Callable[[socket.socket], Awaitable[Any]]
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        if self._server is None or not self._server.sockets:
            raise RuntimeError("the server is not started")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def scheme(self) -> str:
        return "https" if self._settings.tls_certificate else "http"

    async def start(self) -> None:
        """Listen. A port that is taken raises OSError."""
        loop = asyncio.get_running_loop()
        service = HttpService(
            core=self._sources.core,
            settings=self._settings,
            access=self._access,
            connections=self._connections,
            loop=loop,
            app=self._app,
            shared_memory=self._sources.shared_memory,
            has_infer=self._sources.has_infer,
        )
        host, port = self._settings.host, self._wanted_port
        context = _tls_context(self._settings)
        try:
            self._server = await loop.create_server(
                lambda: HttpConnection(service), host, port, ssl=context, backlog=_BACKLOG
            )
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno == errno.EADDRINUSE:
                reason = (
                    "the port is in use by another process\ngive another one, or 0 for a free one"
                )
            raise OSError(error.errno, f"cannot listen on {host} port {port}: {reason}") from None
        self._accept = lambda client: loop.connect_accepted_socket(
            lambda: HttpConnection(service), client, ssl=context
        )
        self._schedule_sweep(loop)

    async def stop_accepting(self) -> None:
        """Take no new connections; those that are open are closed after their next answer.

        Clients that are connected, and were not accepted yet, are answered.
        """
        self._connections.is_draining = True
        if self._server is None:
            return
        await close_listening(self._server, self._accept)

    async def stop(self, timeout: float) -> None:
        """Wait for the answers of requests under way, at most `timeout` seconds; then close all."""
        await self.stop_accepting()
        await self._connections.drain(timeout)
        if self._sweep is not None:
            self._sweep.cancel()

    def expire_connections(self, now: float) -> None:
        """End the connections whose deadline has passed; `now` is of the loop's clock."""
        self._connections.expire(now)

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self.expire_connections(loop.time())
        self._sweep = loop.call_later(_SECONDS_BETWEEN_SWEEPS, self._schedule_sweep, loop)


def _tls_context(settings: ServingSettings) -> ssl.SSLContext | None:
    if settings.tls_certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(
            f"the certificate {settings.tls_certificate!r} cannot be used: {error}\n"
            "tls_certificate and tls_key must be a matching pair of PEM files"
        ) from None
    return context
