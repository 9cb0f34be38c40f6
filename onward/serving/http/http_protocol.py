"""A connection of the HTTP server: bytes -> exchanges, in order -> bytes.

`POST /v2/models/{name}[/versions/{version}]/infer` goes to the core as raw bytes; everything else
goes to the ASGI application. Requests of one connection are handled one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections import deque
from typing import cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

from onward.errors import ServerOverloaded, ServingError
from onward.serving.access import RouteKind, route_kind
from onward.serving.http import connection_limits as limits
from onward.serving.http.app_exchange import AppExchange, make_scope
from onward.serving.http.http_exchange import InferExchange, PreparedAnswer
from onward.serving.http.http_request import Body
from onward.serving.http.http_response import HttpError, write_error
from onward.serving.http.http_service import HttpService
from onward.serving.http.infer_head import Headers, InferHead, infer_target, read_infer_head
from onward.serving.http.request_body import RequestBody, check_length

Exchange = InferExchange | AppExchange | PreparedAnswer

_MAX_KNOWN_HEADS, _MAX_KNOWN_HEAD = 16, 2048  # of one connection; bytes of one of them
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection(asyncio.Protocol):
    """The protocol of one connection."""

    def __init__(self, service: HttpService) -> None:
        self.service = service
        self.deadline = math.inf
        self.client: tuple[str, int] | None = None
        self._server: tuple[str, int | None] | None = None
        self._transport: asyncio.Transport
        self._flow: FlowControl
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        # The request that is being read.
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_size = 0
        self._reads_head = self._reads = False
        self._incoming: Exchange | None = None
        self._expected: int | None = 0  # bytes of the body; None: chunked
        self._whole: Body = b""  # the body, if it arrived in one piece
        self._pieces: RequestBody | None = None
        # Heads of infer requests: the next ones of a client mostly have the very same bytes.
        self._known_heads: dict[bytes, InferHead] = {}
        self._new_head: bytes | None = None
        self._wants_continue = False
        self._bytes_after_upgrade = 0
        # The requests that were read.
        self._current: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._is_advancing = False
        self._is_refused = False  # the rest of what the client sends is dropped
        self._is_half_closed = False  # the client sends nothing more, and may still read
        self._was_probed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._flow = FlowControl(self._transport)
        self.client = get_remote_addr(self._transport)
        self._server = get_local_addr(self._transport)
        self.deadline = self.service.loop.time() + self.service.settings.header_timeout
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
        if self._bytes_after_upgrade:
            data = self._take_body_after_upgrade(data)
            if not data:
                return
        if not self._reads and self._receive_known(data):
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserCallbackError as error:
            self._refuse(error.__context__ or error)
            return
        except httptools.HttpParserError as error:
            self._refuse(HttpError(400, _why_invalid(data, error)))
            return
        if self._reads_head:
            self._head_size += len(data)
            if self._head_size > limits.MAX_HEAD_BYTES:
                self._refuse(_headers_too_large())

    def eof_received(self) -> bool:
        """The client sends nothing more. True: the connection stays for the answers."""
        self._is_half_closed = True
        if self._reads and not self._is_refused:
            self._refuse(HttpError(400, "the connection ended before the request was complete"))
        if not self._is_busy or is_ssl(self._transport):  # TLS cannot keep one half
            return False
        if not self._flow.write_paused:
            self.deadline = self.service.loop.time() + limits.PROBE_AFTER
        return True

    # Called by the parser. An error that they raise refuses the request.

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._head_size = 0
        self._reads_head = self._reads = True
        if not self._flow.write_paused:
            self.deadline = self.service.loop.time() + self.service.settings.header_timeout

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self._headers) == limits.MAX_HEADERS:  # at once: more of them cost time
            raise HttpError(431, f"the request has more than {limits.MAX_HEADERS} headers")
        self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self._reads_head = False
        if len(self._url) > limits.MAX_URL_BYTES:
            raise HttpError(414, "the URL of the request is too long")
        if sum([len(name) + len(value) for name, value in self._headers]) > limits.MAX_HEAD_BYTES:
            raise _headers_too_large()  # they arrived at once
        headers = dict(self._headers)
        expects = headers.get(b"expect", b"").lower() == b"100-continue"
        self._expected = self._read_length(headers)
        try:
            self._incoming = self._open_exchange(headers)
        except ServingError as error:
            if expects:
                raise  # the client has not sent the body, and will not
            self._count_refused(error)
            # An answer to HEAD has no body: this one ends with the connection.
            keep_alive = self._parser.should_keep_alive() and self._parser.get_method() != b"HEAD"
            self._incoming = PreparedAnswer(self, write_error(error, keep_alive), keep_alive)
        self._wants_continue = expects
        self._send_continue()

    def on_body(self, data: bytes) -> None:
        if len(data) == self._expected:
            self._whole = data
            return
        if not isinstance(self._incoming, PreparedAnswer):
            self._add_piece(data)
        if not self._flow.write_paused:
            self.deadline += len(data) / limits.SLOWEST_BYTES_PER_SECOND

    def on_message_complete(self) -> None:
        if not self._parser.should_upgrade():  # else the parser ends it before its body
            self._complete()

    # Called by exchanges.

    def answer(self, data: bytes, keep_alive: bool) -> None:
        """Write the answer of the current exchange, and go on with the next one."""
        self._current = None
        self._transport.write(data)
        if not keep_alive or self.service.connections.is_draining:
            self._close(linger=self._is_refused or self._reads)
            return
        self._go_on()

    # Called by the registry of connections.

    def expire(self) -> None:
        if self._is_half_closed and not self._flow.write_paused:
            self._probe()
        elif self._is_refused or self._flow.write_paused:
            self._transport.abort()
        elif self._reads:
            seconds = self.service.settings.header_timeout
            self._refuse(HttpError(408, f"the request did not arrive within {seconds:g} s"))
        else:
            self._transport.close()

    def close_if_idle(self) -> None:
        if self._is_streaming or not (self._is_busy or self._reads):
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

    def _open_exchange(self, headers: Headers) -> InferExchange | AppExchange:
        service = self.service
        method = self._parser.get_method()
        keep_alive = self._parser.should_keep_alive()
        try:
            target = infer_target(self._url) if service.has_infer else None
            if target is not None:
                if method != b"POST":
                    raise HttpError(405, "Method Not Allowed")
                head = read_infer_head(target, headers, self._expected, keep_alive)
                self._check_access(head.authorization, head.api_key)
                self._learn(head, headers)
                return InferExchange(self, head)
            scope = make_scope(
                method.decode("ascii"),
                self._url,
                self._headers,
                client=self.client,
                server=self._server,
                scheme="https" if is_ssl(self._transport) else "http",
            )
        except httptools.HttpParserError:
            raise HttpError(400, "the URL of the request is not valid") from None
        kind = route_kind(scope["method"], scope["path"])
        self._check_access(headers.get(b"authorization"), headers.get(b"x-api-key"), kind)
        if self._parser.get_http_version() == "1.0":
            keep_alive = False
        return AppExchange(
            service, self._transport, self._flow, scope, keep_alive, self._app_finished
        )

    def _check_access(
        self, authorization: bytes | None, api_key: bytes | None, kind: RouteKind = "api"
    ) -> None:
        access = self.service.access
        if not access.is_open:
            access.check(authorization, api_key, self.client[0] if self.client else "", kind)

    def _receive_known(self, data: bytes) -> bool:
        """Take a whole infer request whose head was parsed before; False if it is not one."""
        self._new_head = None
        end = data.find(b"\r\n\r\n", 0, _MAX_KNOWN_HEAD) + 4
        if end < 4:
            return False
        start = data[:end]
        head = self._known_heads.get(start)
        if head is None or head.length != len(data) - end:
            self._new_head = start if start[:6] == b"POST /" else None
            return False
        try:
            self._check_access(head.authorization, head.api_key)
        except ServingError:
            return False
        self._enqueue(InferExchange(self, head, data[end:]))
        return True

    def _learn(self, head: InferHead, headers: Headers) -> None:
        start, self._new_head = self._new_head, None
        if start is None or not head.keep_alive or head.length is None or b"expect" in headers:
            return
        if self._parser.should_upgrade():
            return
        if len(self._known_heads) >= _MAX_KNOWN_HEADS:
            self._known_heads.clear()
        self._known_heads[start] = head

    def _read_length(self, headers: Headers) -> int | None:
        """The length of the body; one that is too long is refused before it is read."""
        text = headers.get(b"content-length")
        if text is None:
            return None if b"transfer-encoding" in headers else 0
        length = int(text)
        check_length(length, self.service.settings.max_body_bytes)
        return length

    def _add_piece(self, data: bytes) -> None:
        if self._pieces is None:
            json_length = dict(self._headers).get(b"inference-header-content-length", b"")
            self._pieces = RequestBody(
                self._expected,
                self.service.settings.max_body_bytes,
                int(json_length) if json_length.isdigit() and len(json_length) < 16 else 0,
            )
        self._pieces.add(data)

    def _send_continue(self) -> None:
        if self._wants_continue and self._current is None and not self._waiting:
            self._wants_continue = False
            self._transport.write(_CONTINUE)

    def _complete(self) -> None:
        """A request has arrived: handle it when it is its turn."""
        exchange, self._incoming = self._incoming, None
        assert exchange is not None
        exchange.body, self._whole = self._whole, b""
        if self._pieces is not None:
            exchange.body, self._pieces = self._pieces.take(), None
        self._reads = self._wants_continue = False
        self._new_head = None  # it belongs to the first request of the data
        if not self._is_refused:  # the request before this one may have closed the connection
            self._enqueue(exchange)

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
        self._send_continue()
        if len(self._waiting) < limits.MAX_PIPELINED:
            self._flow.resume_reading()
        if self._is_refused or self._flow.write_paused:
            return
        if self._current is not None:
            self.deadline = math.inf
            return
        if self._is_half_closed:
            self._transport.close()
            return
        settings = self.service.settings
        seconds = settings.header_timeout if self._reads else settings.keep_alive
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
            target = infer_target(self._url)
            if target is not None:
                self.service.core.count_refused(*target, error)

    def _refuse(self, error: BaseException) -> None:
        """Answer with an error after the requests before it, and read nothing more."""
        if self._reads:
            self._count_refused(error)
        self._is_refused = True
        self._reads = False
        self.deadline = math.inf
        self._waiting.append(PreparedAnswer(self, write_error(error, keep_alive=False), False))
        self._advance()

    def _close(self, linger: bool) -> None:
        """Close; while the client still sends, read on, or it would not see the answer."""
        self._is_refused = True
        self._waiting.clear()
        if linger and not self._is_half_closed and self._transport.can_write_eof():
            self._transport.write_eof()
            self._flow.resume_reading()
            self.deadline = self.service.loop.time() + self.service.settings.header_timeout
        else:
            self._transport.close()

    def _probe(self) -> None:
        """Find out whether the client is gone: its end then refuses what is written to it.

        A client that left and one that only ended its half look the same before. Each client
        takes `100 Continue` before an answer, those of HTTP/1.0 apart.
        """
        self.deadline = math.inf
        if self._was_probed:
            found = self._transport.get_extra_info("socket")
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._transport.abort()
        elif not self._is_streaming and self._parser.get_http_version() != "1.0":
            self._was_probed = True
            self._transport.write(_CONTINUE)
            self.deadline = self.service.loop.time() + limits.PROBE_AFTER

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Go on with HTTP/1.1: some clients ask for HTTP/2 in a request that has a body."""
        if self._expected is None:
            self._refuse(HttpError(400, "an upgrade of a chunked request is not supported"))
            return
        self._bytes_after_upgrade = self._expected
        if not self._expected:
            self._complete()
        if rest:
            self.data_received(rest)

    def _take_body_after_upgrade(self, data: bytes) -> bytes:
        size = self._bytes_after_upgrade
        self.on_body(data[:size])
        self._bytes_after_upgrade = max(0, size - len(data))
        if not self._bytes_after_upgrade:
            self._complete()
        return data[size:]


def _why_invalid(data: bytes, error: httptools.HttpParserError) -> str:
    """What a client sent that is not HTTP/1.1."""
    if data.startswith(b"PRI * HTTP/2"):
        return "this port speaks HTTP/1.1, not HTTP/2: gRPC is on a port of its own"
    if data.startswith(b"\x16\x03"):
        return "this port speaks HTTP without TLS: use http://"
    return f"this is not a valid HTTP request: {error}"


def _headers_too_large() -> HttpError:
    return HttpError(431, "the headers of the request are too large")
