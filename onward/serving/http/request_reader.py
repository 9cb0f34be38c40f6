"""Read the requests of one connection: bytes -> head, body.

What is wrong with them is raised as an error for the client; nothing can be read after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import httptools

from onward.serving.http import connection_limits as limits
from onward.serving.http.http_request import Body
from onward.serving.http.http_response import HttpError
from onward.serving.http.infer_head import Headers
from onward.serving.http.request_body import RequestBody, check_length


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The first line and the headers of a request."""

    method: bytes
    url: bytes
    lines: list[tuple[bytes, bytes]]  # all headers, in order; names in lower case
    headers: Headers
    length: int | None  # of the body; None: chunked
    keep_alive: bool
    is_http_1_0: bool
    wants_upgrade: bool

    @property
    def expects_continue(self) -> bool:
        """The client sends the body when it is told to."""
        return self.headers.get(b"expect", b"").lower() == b"100-continue"


class TakesRequests(Protocol):
    """The connection of a reader. An error that it raises refuses the request."""

    def request_begins(self) -> None: ...

    def head_arrived(self, head: RequestHead) -> bool:
        """False: the body is read and dropped."""
        ...

    def piece_arrived(self, size: int) -> None: ...

    def request_arrived(self, body: Body) -> None: ...


class RequestReader:
    """Parses what one client sends."""

    def __init__(self, connection: TakesRequests, max_body_bytes: int) -> None:
        self._connection = connection
        self._max_body_bytes = max_body_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.is_reading = False  # a request has begun, and not ended
        self.url = b""  # of the request that is being read
        self._lines: list[tuple[bytes, bytes]] = []
        self._head_size = 0
        self._is_in_head = False
        self._expected: int | None = 0  # bytes of the body; None: chunked
        self._keeps_body = True
        self._whole: Body = b""  # the body, if it arrived in one piece
        self._pieces: RequestBody | None = None
        self._bytes_after_upgrade = 0

    def feed(self, data: bytes) -> None:
        """Read what arrived."""
        while data:
            if self._bytes_after_upgrade:
                data = self._take_body_after_upgrade(data)
                continue
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._ignore_upgrade()
                continue
            except httptools.HttpParserCallbackError as error:
                raise (error.__context__ or error) from None
            except httptools.HttpParserError as error:
                raise HttpError(400, _why_invalid(data, error)) from None
            if self._is_in_head:
                self._head_size += len(data)
                if self._head_size > limits.MAX_HEAD_BYTES:
                    raise _headers_too_large()
            return

    @property
    def is_http_1_0(self) -> bool:
        """The client speaks HTTP/1.0."""
        return self._parser.get_http_version() == "1.0"

    # Called by the parser.

    def on_message_begin(self) -> None:
        self.url = b""
        self._lines = []
        self._head_size = 0
        self._is_in_head = self.is_reading = True
        self._connection.request_begins()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self._lines) == limits.MAX_HEADERS:  # at once: more of them cost time
            raise HttpError(431, f"the request has more than {limits.MAX_HEADERS} headers")
        self._lines.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if len(self.url) > limits.MAX_URL_BYTES:
            raise HttpError(414, "the URL of the request is too long")
        if sum([len(name) + len(value) for name, value in self._lines]) > limits.MAX_HEAD_BYTES:
            raise _headers_too_large()  # they arrived at once
        headers, parser = dict(self._lines), self._parser
        self._expected = self._read_length(headers)
        self._keeps_body = self._connection.head_arrived(
            RequestHead(
                parser.get_method(),
                self.url,
                self._lines,
                headers,
                self._expected,
                parser.should_keep_alive(),
                self.is_http_1_0,
                parser.should_upgrade(),
            )
        )

    def on_body(self, data: bytes) -> None:
        if len(data) == self._expected:
            self._whole = data
            return
        if self._keeps_body:
            self._add_piece(data)
        self._connection.piece_arrived(len(data))

    def on_message_complete(self) -> None:
        if not self._parser.should_upgrade():  # else the parser ends it before its body
            self._complete()

    def _read_length(self, headers: Headers) -> int | None:
        """The length of the body; one that is too long is refused before it is read."""
        text = headers.get(b"content-length")
        coding = headers.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            given = coding.decode("latin-1")
            raise HttpError(501, f"the transfer coding {given!r} is not supported: chunked is")
        if text is None:
            return None if coding is not None else 0
        length = int(text)
        check_length(length, self._max_body_bytes)
        return length

    def _add_piece(self, data: bytes) -> None:
        if self._pieces is None:
            json_length = dict(self._lines).get(b"inference-header-content-length", b"")
            self._pieces = RequestBody(
                self._expected,
                self._max_body_bytes,
                int(json_length) if json_length.isdigit() and len(json_length) < 16 else 0,
            )
        self._pieces.add(data)

    def _complete(self) -> None:
        body, self._whole = self._whole, b""
        if self._pieces is not None:
            body, self._pieces = self._pieces.take(), None
        self.is_reading = False
        self._connection.request_arrived(body)

    def _ignore_upgrade(self) -> None:
        """Go on with HTTP/1.1: some clients ask for HTTP/2 in a request that has a body."""
        if self._expected is None:
            raise HttpError(400, "an upgrade of a chunked request is not supported")
        self._bytes_after_upgrade = self._expected
        if not self._expected:
            self._complete()

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
