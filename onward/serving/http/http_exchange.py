"""One request and its answer on an HTTP connection.

An exchange is started when it is its connection's turn, and ends by calling `connection.answer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from onward.serving.http.http_request import Body, decompress, read_json_length, read_request
from onward.serving.http.http_response import (
    BINARY,
    JSON,
    compress,
    count_json_elements,
    describe_error,
    error_body,
    error_headers,
    write_answer,
    write_outputs,
)
from onward.serving.http.http_service import HttpService
from onward.serving.http.infer_head import InferHead
from onward.serving.requests import Cancel, InferRequest, InferResponse

# Work above these sizes is done in a thread, so that other requests are not delayed.
_HEAVY_JSON_BYTES = 256 << 10
_HEAVY_COMPRESSED_BYTES = 64 << 10
_HEAVY_JSON_ELEMENTS = 100_000
_HEAVY_BYTES_TO_COMPRESS = 256 << 10


class AnswersHere(Protocol):
    """The connection of an exchange."""

    service: HttpService

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
        "_cancel", "_connection", "_head", "_is_binary", "_is_over", "_is_submitted", "_request",
        "body",
    )  # fmt: skip

    def __init__(self, connection: AnswersHere, head: InferHead, body: Body = b"") -> None:
        self._connection = connection
        self._head = head
        self._cancel: Cancel | None = None
        self._is_over = self._is_submitted = False
        self.body = body

    def start(self) -> None:
        body, head = self.body, self._head
        self.body = b""
        try:
            if head.encoding is None:
                length = read_json_length(head.json_length, len(body))
                if length <= _HEAVY_JSON_BYTES:
                    self._submit(self._read(body, length))
                else:
                    self._in_thread(lambda: self._read(body, length), self._submit)
            elif len(body) <= _HEAVY_COMPRESSED_BYTES:
                self._submit(self._unpack_and_read(body))
            else:
                self._in_thread(lambda: self._unpack_and_read(body), self._submit)
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
                self._write(self._request, result)
                return
            except Exception as error:
                result = error
        self._answer_error(result)

    def _read(self, body: Body, json_length: int) -> tuple[InferRequest, bool]:
        service, head = self._connection.service, self._head
        found = service.repeated.read(head.model, head.version, body, json_length)
        if found is not None:
            return found
        found = read_request(
            head.model,
            head.version,
            body,
            json_length,
            service.shared_memory,
            () if json_length else service.core.signature(head.model, head.version)[0],
        )
        if json_length:
            service.repeated.remember(body, json_length, *found)
        return found

    def _unpack_and_read(self, body: Body) -> tuple[InferRequest, bool]:
        head, limit = self._head, self._connection.service.settings.max_body_bytes
        body = decompress(body, head.encoding or b"", limit)
        return self._read(body, read_json_length(head.json_length, len(body)))

    def _submit(self, found: tuple[InferRequest, bool]) -> None:
        self._request, self._is_binary = found
        request, head = found[0], self._head
        if head.request_id is not None and not request.id:
            request.id = head.request_id.decode("latin-1")
        if head.traceparent is not None:
            request.traceparent = head.traceparent.decode("latin-1")
        self._is_submitted = True
        cancel = self._connection.service.core.submit(request, self.done)
        if not self._is_over:
            self._cancel = cancel

    def _write(self, request: InferRequest, response: InferResponse) -> None:
        service, is_binary = self._connection.service, self._is_binary
        written = service.repeated.write(request, response, is_binary)
        if written is not None:
            self._send(written)
            return
        labels, shared_memory = service.core.labels, service.shared_memory
        if count_json_elements(request, response, is_binary) <= _HEAVY_JSON_ELEMENTS:
            self._send(write_outputs(request, response, is_binary, labels, shared_memory))
            return
        # A thread writes them later than this callback: the buffers may be used again by then.
        response.outputs = {name: each.copy() for name, each in response.outputs.items()}
        self._in_thread(
            lambda: write_outputs(request, response, is_binary, labels, shared_memory), self._send
        )

    def _send(self, written: tuple[bytes, int | None]) -> None:
        body, json_length = written
        extra, content_type, encoding = b"", JSON, self._head.answer_encoding
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
        if not self._is_submitted:
            self._count_refused(error)
        self._answer(status, error_body(text), error_headers(status, retry_after), JSON)

    def _answer(self, status: int, body: bytes, extra: bytes, content_type: bytes) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._cancel = None  # it may refer to this exchange, which would keep the tensors
        connection = self._connection
        service = connection.service
        keep_alive = self._head.keep_alive and not service.connections.is_draining
        if keep_alive and self._head.confirms_keep_alive:
            extra += b"Connection: keep-alive\r\n"
        connection.answer(write_answer(status, body, content_type, extra, keep_alive), keep_alive)

    def _count_refused(self, error: BaseException) -> None:
        head = self._head
        if isinstance(error, Exception):
            request_id = (head.request_id or b"").decode("latin-1")
            core = self._connection.service.core
            core.count_refused(head.model, head.version, error, request_id)

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
