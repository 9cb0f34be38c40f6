"""A connection of the HTTP server: requests in, answers out in the same order.

`POST /v2/models/{name}[/versions/{version}]/infer` goes to the core as raw bytes; everything else
goes to the ASGI application. Requests of one connection are handled one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from typing import cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

from onward.errors import ServerOverloaded, ServingError
from onward.serving.access import RouteKind, route_kind
from onward.serving.http import connection_limits as limits
from onward.serving.http.app_exchange import AppExchange, make_scope
from onward.serving.http.client_probe import CONTINUE, ClientProbe
from onward.serving.http.http_exchange import InferExchange, PreparedAnswer
from onward.serving.http.http_request import Body
from onward.serving.http.http_response import HttpError, write_error
from onward.serving.http.http_service import HttpService
from onward.serving.http.infer_head import InferHead, infer_target, read_infer_head
from onward.serving.http.known_heads import KnownHeads
from onward.serving.http.request_reader import RequestHead, RequestReader

Exchange = InferExchange | AppExchange | PreparedAnswer


class HttpConnection(asyncio.Protocol):
    """The protocol of one connection."""

    def __init__(self, service: HttpService) -> None:
        self.service = service
        self.deadline = math.inf
        self.client: tuple[str, int] | None = None
        self._server: tuple[str, int | None] | None = None
        self._transport: asyncio.Transport
        self._flow: FlowControl
        # The request that is being read.
        self._reader = RequestReader(self, service.settings.max_body_bytes)
        self._known_heads = KnownHeads()
        self._incoming: Exchange | None = None
        self._wants_continue = False
        # The requests that were read.
        self._current: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._is_advancing = False
        self._is_refused = False  # the rest of what the client sends is dropped
        self._probe: ClientProbe | None = None  # the client sends nothing more, and may still read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._flow = FlowControl(self._transport)
        self.client = get_remote_addr(self._transport)
        self._server = get_local_addr(self._transport)
        self._set_deadline(self.service.settings.header_timeout)
        connections = self.service.connections
        if not connections.add(self):
            if connections.is_flooded:
                self._transport.abort()
            self._refuse(ServerOverloaded("the server has too many connections", retry_after=1))

    def connection_lost(self, exc: Exception | None) -> None:
        self.service.connections.remove(self)
        self._is_refused = True
        self._waiting.clear()
        current, self._current = self._current, None
        if current is not None:
            current.abort()
        self._flow.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if not self._reader.is_reading:
            found = self._known_heads.find(data)
            if found is not None and (self.service.access.is_open or self._may_infer(found[0])):
                self._enqueue(InferExchange(self, *found))
                return
        try:
            self._reader.feed(data)
        except Exception as error:
            if not self._is_refused:
                self._refuse(error)

    def eof_received(self) -> bool:
        """The client sends nothing more. True: the connection stays for the answers."""
        self._probe = ClientProbe(self._transport)
        if self._reader.is_reading and not self._is_refused:
            self._refuse(HttpError(400, "the connection ended before the request was complete"))
        if not self._is_busy or is_ssl(self._transport):  # TLS cannot keep one half
            return False
        self._set_deadline(limits.PROBE_AFTER)
        return True

    # Called by the reader. An error that they raise refuses the request.

    def request_begins(self) -> None:
        self._set_deadline(self.service.settings.header_timeout)

    def head_arrived(self, head: RequestHead) -> bool:
        try:
            self._incoming = self._open_exchange(head)
        except ServingError as error:
            if head.expects_continue:
                raise  # the client has not sent the body, and will not
            self._count_refused(error)
            # An answer to HEAD has no body: this one ends with the connection.
            keep_alive = head.keep_alive and head.method != b"HEAD"
            self._incoming = PreparedAnswer(self, write_error(error, keep_alive), keep_alive)
        self._wants_continue = head.expects_continue
        self._send_continue()
        return not isinstance(self._incoming, PreparedAnswer)

    def piece_arrived(self, size: int) -> None:
        if not self._flow.write_paused:
            self.deadline += size / limits.SLOWEST_BYTES_PER_SECOND

    def request_arrived(self, body: Body) -> None:
        """Handle a request when it is its turn."""
        exchange, self._incoming = self._incoming, None
        assert exchange is not None
        exchange.body = body
        self._wants_continue = False
        self._known_heads.forget_new()
        if not self._is_refused:  # the request before this one may have closed the connection
            self._enqueue(exchange)

    # Called by exchanges.

    def answer(self, data: bytes, keep_alive: bool) -> None:
        """Write the answer of the current exchange, and go on with the next one."""
        self._current = None
        self._transport.write(data)
        if not keep_alive or self.service.connections.is_draining:
            self._close(linger=self._is_refused or self._reader.is_reading)
            return
        self._go_on()

    # Called by the registry of connections.

    def expire(self) -> None:
        if self._probe is not None and not self._flow.write_paused:
            may_send = not (self._is_streaming or self._reader.is_http_1_0)
            self._set_deadline(self._probe.advance(may_send))
        elif self._is_refused or self._flow.write_paused:
            self._transport.abort()
        elif self._reader.is_reading:
            seconds = self.service.settings.header_timeout
            self._refuse(HttpError(408, f"the request did not arrive within {seconds:g} s"))
        else:
            self._transport.close()

    def close_if_idle(self) -> None:
        if self._is_streaming or not (self._is_busy or self._reader.is_reading):
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    # Called by the transport, when the client reads too slowly.

    def pause_writing(self) -> None:
        self._flow.pause_writing()
        self.deadline = self.service.loop.time() + self.service.settings.keep_alive

    def resume_writing(self) -> None:
        self._flow.resume_writing()
        self._go_on()

    @property
    def _is_busy(self) -> bool:
        """Requests wait for their answers."""
        return self._current is not None or bool(self._waiting)

    @property
    def _is_streaming(self) -> bool:
        return isinstance(self._current, AppExchange) and self._current.is_streaming

    def _open_exchange(self, head: RequestHead) -> InferExchange | AppExchange:
        service = self.service
        try:
            target = infer_target(head.url) if service.has_infer else None
            if target is not None:
                if head.method != b"POST":
                    raise HttpError(405, "Method Not Allowed")
                infer = read_infer_head(target, head.headers, head.length, head.keep_alive)
                self._check_access(infer.authorization, infer.api_key)
                if not head.wants_upgrade:
                    self._known_heads.learn(infer, head.headers)
                return InferExchange(self, infer)
            scope = make_scope(
                head.method.decode("ascii"),
                head.url,
                head.lines,
                client=self.client,
                server=self._server,
                scheme="https" if is_ssl(self._transport) else "http",
            )
        except httptools.HttpParserError:
            raise HttpError(400, "the URL of the request is not valid") from None
        kind = route_kind(scope["method"], scope["path"])
        headers = head.headers
        self._check_access(headers.get(b"authorization"), headers.get(b"x-api-key"), kind)
        keep_alive = head.keep_alive and not head.is_http_1_0
        return AppExchange(
            service, self._transport, self._flow, scope, keep_alive, self._app_finished
        )

    def _check_access(
        self, authorization: bytes | None, api_key: bytes | None, kind: RouteKind = "api"
    ) -> None:
        access = self.service.access
        if not access.is_open:
            access.check(authorization, api_key, self.client[0] if self.client else "", kind)

    def _may_infer(self, head: InferHead) -> bool:
        with contextlib.suppress(ServingError):
            self._check_access(head.authorization, head.api_key)
            return True
        return False

    def _send_continue(self) -> None:
        if self._wants_continue and not self._is_busy:
            self._wants_continue = False
            self._transport.write(CONTINUE)

    def _set_deadline(self, seconds: float) -> None:
        if not self._flow.write_paused:  # else it is the deadline of the client's reading
            self.deadline = self.service.loop.time() + seconds

    def _enqueue(self, exchange: Exchange) -> None:
        if not self._flow.write_paused:
            self.deadline = math.inf
        self._waiting.append(exchange)
        self._advance()
        if len(self._waiting) >= limits.MAX_PIPELINED:
            self._flow.pause_reading()

    def _advance(self) -> None:
        """Start the next exchange. A loop: exchanges that end at once must not nest."""
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while self._current is None and self._waiting and not self._flow.write_paused:
                self._current = self._waiting.popleft()
                self._current.start()
        finally:
            self._is_advancing = False

    def _go_on(self) -> None:
        if self._transport.is_closing():
            return
        self._advance()
        if self._wants_continue:
            self._send_continue()
        if len(self._waiting) < limits.MAX_PIPELINED:
            self._flow.resume_reading()
        if self._is_refused or self._flow.write_paused:
            return
        if self._current is not None:
            self.deadline = math.inf
            return
        if self._probe is not None:
            self._transport.close()
            return
        settings = self.service.settings
        seconds = settings.header_timeout if self._reader.is_reading else settings.keep_alive
        self.deadline = self.service.loop.time() + seconds

    def _app_finished(self) -> None:
        self._current = None
        if self.service.connections.is_draining:
            self._transport.close()
        self._go_on()

    def _count_refused(self, error: BaseException) -> None:
        """Count a request to a model that is refused before it is read."""
        if not (isinstance(error, Exception) and self.service.has_infer):
            return
        with contextlib.suppress(httptools.HttpParserError):  # of the URL
            target = infer_target(self._reader.url)
            if target is not None:
                self.service.core.count_refused(*target, error)

    def _refuse(self, error: BaseException) -> None:
        """Answer with an error after the requests before it, and read nothing more."""
        if self._reader.is_reading:
            self._count_refused(error)
        self._is_refused = True
        self._reader.is_reading = False
        self.deadline = math.inf
        self._waiting.append(PreparedAnswer(self, write_error(error, keep_alive=False), False))
        self._advance()

    def _close(self, linger: bool) -> None:
        """Close; while the client still sends, read on, or it would not see the answer."""
        self._is_refused = True
        self._waiting.clear()
        if linger and self._probe is None and self._transport.can_write_eof():
            self._transport.write_eof()
            self._flow.resume_reading()
            self.deadline = self.service.loop.time() + self.service.settings.header_timeout
        else:
            self._transport.close()
