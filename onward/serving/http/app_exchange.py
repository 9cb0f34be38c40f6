"""A request to a route of the ASGI application: all but infer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from onward.serving.http.http_request import Body
from onward.serving.http.http_service import HttpService

_log = logging.getLogger("onward.serving")
_access_log = logging.getLogger("onward.serving.access")


class AppExchange:
    """Runs the application in a task; uvicorn's cycle writes what it sends."""

    __slots__ = (
        "_cycle", "_finished", "_flow", "_headers", "_keep_alive", "_scope", "_service",
        "_transport", "body",
    )  # fmt: skip

    def __init__(
        self,
        service: HttpService,
        transport: asyncio.Transport,
        flow: FlowControl,
        scope: dict[str, Any],
        keep_alive: bool,
        finished: Callable[[], None],
    ) -> None:
        self._service = service
        self._transport = transport
        self._flow = flow
        self._scope = scope
        self._keep_alive = keep_alive
        self._finished = finished
        self._cycle: RequestResponseCycle | None = None
        self.body: Body = b""

    def start(self) -> None:
        service = self._service
        cycle = self._cycle = RequestResponseCycle(
            scope=self._scope,  # type: ignore[arg-type]
            transport=self._transport,
            flow=self._flow,
            logger=_log,
            access_logger=_access_log,
            access_log=service.settings.access_log,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=self._keep_alive and not service.connections.is_draining,
            on_response=self._finished,
        )
        cycle.body = bytearray(self.body)
        cycle.more_body = False
        cycle.message_event.set()
        self.body = b""
        task = service.loop.create_task(cycle.run_asgi(service.app))
        service.tasks.add(task)  # the loop itself does not keep it
        task.add_done_callback(service.tasks.discard)

    def abort(self) -> None:
        """Tell the application that the client is gone."""
        if self._cycle is not None:
            self._cycle.disconnected = True
            self._cycle.message_event.set()

    @property
    def is_streaming(self) -> bool:
        """An answer without an end, as a page that is kept up to date."""
        cycle = self._cycle
        return cycle is not None and cycle.response_started and not cycle.response_complete


def make_scope(
    method: str,
    url: bytes,
    headers: list[tuple[bytes, bytes]],
    *,
    client: tuple[str, int] | None,
    server: tuple[str, int | None] | None,
    scheme: str,
) -> dict[str, Any]:
    """The ASGI scope of a request. A URL that cannot be parsed raises HttpParserError."""
    parsed = httptools.parse_url(url)
    raw_path = parsed.path or b"/"
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": server,
        "client": client,
        "scheme": scheme,
        "root_path": "",
        "headers": headers,
        "method": method,
        "path": unquote(raw_path.decode("latin-1")),
        "raw_path": raw_path,
        "query_string": parsed.query or b"",
        "state": {},
    }
