"""One request and its answer on an HTTP connection.

An exchange is started when it is its connection's turn, and ends by calling `connection.answer`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

from onward.serving.access import Access
from onward.serving.connection_limits import Connections
from onward.serving.core import Core
from onward.serving.http_request import Body, decompress, read_json_length, read_request
from onward.serving.http_response import (
    BINARY,
    JSON,
    choose_encoding,
    compress,
    count_json_elements,
    describe_error,
    error_body,
    error_headers,
    write_answer,
    write_outputs,
)
from onward.serving.requests import Cancel, InferRequest, InferResponse
from onward.serving.settings import ServerSettings
from onward.serving.shared_regions import SharedRegions

access_log = logging.getLogger("onward.serving.access")

Headers = dict[bytes, bytes]  # names in lower case; the last one of a name counts

# Work above these sizes is done in a thread, so that other requests go on meanwhile.
_HEAVY_JSON_BYTES = 256 << 10
_HEAVY_COMPRESSED_BYTES = 64 << 10
_HEAVY_JSON_ELEMENTS = 100_000
_HEAVY_BYTES_TO_COMPRESS = 256 << 10


@dataclass(slots=True)
class HttpService:
    """What all connections of one HTTP server share."""

    core: Core
    settings: ServerSettings
    access: Access
    connections: Connections
    loop: asyncio.AbstractEventLoop
    app: Any  # the ASGI application of all routes but infer
    shared_memory: SharedRegions | None = None
    has_infer: bool = True
    executor: Executor | None = None  # None: the loop's own


class AnswersHere(Protocol):
    """The connection of an exchange."""

    service: HttpService
    client: tuple[str, int] | None

    def answer(self, data: bytes, keep_alive: bool) -> None: ...


class PreparedAnswer:
    """An answer that is known when the headers are read: an error."""

    __slots__ = ("_connection", "_data", "_keep_alive", "body")

    def __init__(self, connection: AnswersHere, data: bytes, keep_alive: bool) -> None:
        self._connection = connection
        self._data = data
        self._keep_alive = keep_alive
        self.body: Body = b""

    def start(self) -> None:
        self._connection.answer(self._data, self._keep_alive)

    def abort(self) -> None:
        return None


class InferExchange:
    """A request to the infer route."""

    __slots__ = (
        "_cancel", "_connection", "_headers", "_is_binary", "_is_over", "_keep_alive", "_model",
        "_request", "_started", "_version", "body",
    )  # fmt: skip

    def __init__(
        self,
        connection: AnswersHere,
        target: tuple[str, str],
        headers: Headers,
        keep_alive: bool,
    ) -> None:
        self._connection = connection
        self._model, self._version = target
        self._headers = headers
        self._keep_alive = keep_alive
        self._cancel: Cancel | None = None
        self._request: InferRequest | None = None
        self._is_binary = False
        self._is_over = False
        self._started = 0.0
        self.body: Body = b""

    def start(self) -> None:
        service, body = self._connection.service, self.body
        if service.settings.access_log:
            self._started = time.perf_counter()
        headers = self._headers
        try:
            encoding = headers.get(b"content-encoding")
            if encoding is None or encoding == b"identity":
                length = read_json_length(
                    headers.get(b"inference-header-content-length"), len(body)
                )
                if length <= _HEAVY_JSON_BYTES:
                    self._submit(self._read(body, length))
                else:
                    self._in_thread(lambda: self._read(body, length), self._submit)
            elif len(body) <= _HEAVY_COMPRESSED_BYTES:
                self._submit(self._unpack_and_read(body, encoding))
            else:
                self._in_thread(lambda: self._unpack_and_read(body, encoding), self._submit)
        except Exception as error:
            self.done(error)

    def abort(self) -> None:
        """The client is gone: do not run what has not started."""
        self._is_over = True
        if self._cancel is not None:
            self._cancel()

    def done(self, result: InferResponse | Exception) -> None:
        """Answer the client; called by the core."""
        if self._is_over:
            return
        if isinstance(result, InferResponse):
            try:
                self._write(result)
                return
            except Exception as error:
                result = error
        self._answer_error(result)

    def _read(self, body: Body, json_length: int) -> tuple[InferRequest, bool]:
        service = self._connection.service
        return read_request(
            self._model,
            self._version,
            body,
            json_length,
            shared_memory=service.shared_memory,
            raw_inputs=() if json_length else service.core.signature(self._model, self._version)[0],
        )

    def _unpack_and_read(self, body: Body, encoding: bytes) -> tuple[InferRequest, bool]:
        body = decompress(body, encoding, self._connection.service.settings.max_body_bytes)
        header = self._headers.get(b"inference-header-content-length")
        return self._read(body, read_json_length(header, len(body)))

    def _submit(self, found: tuple[InferRequest, bool]) -> None:
        self._request, self._is_binary = found
        self.body = b""
        self._cancel = self._connection.service.core.submit(self._request, self.done)

    def _write(self, response: InferResponse) -> None:
        service, request, is_binary = self._connection.service, self._request, self._is_binary
        assert request is not None  # the core answers what was submitted
        encoding = choose_encoding(self._headers.get(b"accept-encoding"))

        def write() -> tuple[bytes, int | None]:
            core = service.core
            return write_outputs(request, response, is_binary, core.labels, service.shared_memory)

        if count_json_elements(request, response, is_binary) > _HEAVY_JSON_ELEMENTS:
            # A thread writes them later than this callback: the buffers may be used again by then.
            response.outputs = {name: each.copy() for name, each in response.outputs.items()}
            self._in_thread(write, lambda found: self._send(found[0], found[1], encoding))
        else:
            body, json_length = write()
            self._send(body, json_length, encoding)

    def _send(self, body: bytes, json_length: int | None, encoding: bytes | None) -> None:
        extra, content_type = b"", JSON
        if json_length is not None:
            extra = b"Inference-Header-Content-Length: %d\r\n" % json_length
            content_type = BINARY
        if encoding is None:
            self._answer(200, body, extra, content_type)
            return
        extra += b"Content-Encoding: %b\r\n" % encoding
        if len(body) > _HEAVY_BYTES_TO_COMPRESS:
            self._in_thread(
                lambda: compress(body, encoding),
                lambda packed: self._answer(200, packed, extra, content_type),
            )
        else:
            self._answer(200, compress(body, encoding), extra, content_type)

    def _answer_error(self, error: BaseException) -> None:
        status, text, retry_after = describe_error(error)
        self._answer(status, error_body(text), error_headers(status, retry_after), JSON)

    def _answer(self, status: int, body: bytes, extra: bytes, content_type: bytes) -> None:
        if self._is_over:
            return
        self._is_over = True
        connection = self._connection
        service = connection.service
        keep_alive = self._keep_alive and not service.connections.is_draining
        if keep_alive and self._headers.get(b"connection", b"").lower() == b"keep-alive":
            extra += b"Connection: keep-alive\r\n"  # HTTP/1.0 clients wait for it
        if service.settings.access_log:
            access_log.info(
                '%s "POST %s infer" %d %.6f s',
                connection.client[0] if connection.client else "-",
                self._model,
                status,
                time.perf_counter() - self._started,
            )
        data = write_answer(
            status, body, content_type=content_type, extra=extra, keep_alive=keep_alive
        )
        connection.answer(data, keep_alive)

    def _in_thread(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run `work` in a thread, then `then` with its result in the event loop's thread."""
        service = self._connection.service

        def finished(future: asyncio.Future[Any]) -> None:
            if self._is_over or future.cancelled():
                return
            error = future.exception()
            try:
                if error is not None:
                    raise error
                then(future.result())
            except Exception as failure:
                self._answer_error(failure)

        service.loop.run_in_executor(service.executor, work).add_done_callback(finished)
