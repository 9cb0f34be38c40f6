"""One gRPC call over a stream of HTTP/2: messages in, messages and a status out."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from onward.errors import (
    NotSupported,
    RequestExpired,
    RequestInvalid,
    RequestTooLarge,
    ServingError,
)
from onward.serving.grpc.grpc_errors import status_of
from onward.serving.grpc.http2_headers import encode_headers
from onward.serving.grpc.http2_stream import Received, Stream

_ZLIB_WINDOW_BITS = {b"gzip": 31, b"deflate": 15}
_CONTENT = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_HEADERS = encode_headers([*_CONTENT, (b"grpc-accept-encoding", b"identity,deflate,gzip")])
_OK = encode_headers([(b"grpc-status", b"0")])
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_MAX_TEXT = 4000  # bytes of an error


class MessageReceiver(Protocol):
    """Takes the messages of a call that has several."""

    @property
    def is_full(self) -> bool: ...

    def receive(self, message: Received) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class GrpcMethod:
    """A method: `answer` takes the one message of a call, or `open` makes a receiver of several."""

    answer: Callable[[GrpcCall, Received], None] | None = None
    open: Callable[[GrpcCall], MessageReceiver] | None = None


class GrpcCall:
    """A call that is answered with `answer`, or with `send` and `finish`, or with `fail`.

    `on_cancel` is called if the client is gone, or its deadline has passed.
    """

    __slots__ = (
        "_buffer", "_deadline", "_encoding", "_has_ended", "_has_headers", "_is_passing",
        "_max_bytes", "_method", "_passed", "_receiver", "_stream", "headers", "is_done",
        "on_cancel",
    )  # fmt: skip

    def __init__(
        self,
        stream: Stream,
        headers: Mapping[bytes, bytes],
        method: GrpcMethod,
        max_bytes: int,
    ) -> None:
        self._stream = stream
        self.headers = headers
        self._method = method
        self._max_bytes = max_bytes
        self._buffer: bytes | bytearray = b""
        self._passed = 0  # bytes of the buffer whose messages were passed on
        self._has_headers = self.is_done = False
        self._has_ended = False  # the client sent all
        self._is_passing = False  # within _pass_messages
        self.on_cancel: Callable[[], None] | None = None
        self._receiver: MessageReceiver | None = None
        self._encoding = headers.get(b"grpc-encoding", b"identity")
        self._deadline: asyncio.TimerHandle | None = None
        timeout = headers.get(b"grpc-timeout")
        if timeout is not None:
            seconds = _seconds(timeout)
            self._deadline = asyncio.get_running_loop().call_later(seconds, self._expire)
        if method.open is not None:
            self._receiver = method.open(self)

    @property
    def is_unary(self) -> bool:
        """Whether the client sends one message."""
        return self._method.answer is not None

    @property
    def client(self) -> str:
        """The address that the call came from."""
        return self._stream.connection.client

    # -- for the method ------------------------------------------------------------------------

    def answer(self, message: bytes) -> None:
        """Send the one message, and the status OK."""
        if not self.is_done:
            self._finish()
            self._stream.write(_HEADERS, _prefixed(message), _OK)

    def send(self, message: bytes) -> None:
        """Send one of several messages."""
        if not self.is_done:
            headers, self._has_headers = b"" if self._has_headers else _HEADERS, True
            self._stream.write(headers, _prefixed(message))

    def finish(self) -> None:
        """Send the status OK after the last message."""
        if not self.is_done:
            self._finish()
            self._stream.write(b"" if self._has_headers else _HEADERS, b"", _OK)

    def fail(self, error: Exception) -> None:
        """Send an error's status."""
        if self.is_done:
            return
        self._finish()
        number, text, metadata = status_of(error)
        trailers = [
            (b"grpc-status", str(number).encode()),
            (b"grpc-message", _percent_encoded(text)),
            *((name.encode(), value.encode()) for name, value in metadata),
        ]
        if not self._has_headers:
            trailers = _CONTENT + trailers
        self._stream.write(b"", b"", encode_headers(trailers))

    # -- for the connection --------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        return self._receiver is not None and self._receiver.is_full

    def resume(self) -> None:
        """Read on, after the receiver was full: first the messages that have arrived."""
        if self._is_passing or self._receiver is None:
            return
        try:
            self._pass_messages(self._receiver)
        except ServingError as error:
            self.fail(error)
            return
        self._end_messages(self._receiver)
        if not self.is_done:
            self._stream.resume()

    def receive(self, data: Received) -> None:
        if self.is_done:
            return
        if not self._buffer:
            self._buffer = bytes(data)  # a view would keep all that arrived with it in memory
        else:
            if self._passed or not isinstance(self._buffer, bytearray):
                self._buffer, self._passed = bytearray(self._buffer[self._passed :]), 0
            self._buffer += data
        try:
            if len(self._buffer) >= 5:
                self._check_length(int.from_bytes(self._buffer[1:5], "big"))
            if self._receiver is not None:
                self._pass_messages(self._receiver)
        except ServingError as error:
            self.fail(error)

    def end(self) -> None:
        if self.is_done:
            return
        if self._receiver is not None:
            self._has_ended = True
            self._end_messages(self._receiver)
            return
        data, self._buffer = self._buffer, b""
        try:
            if len(data) < 5 or len(data) != 5 + int.from_bytes(data[1:5], "big"):
                raise RequestInvalid("the call does not have exactly one message")
            message = self._message(data[0], memoryview(data)[5:])  # protobuf copies it once
        except ServingError as error:
            self.fail(error)
            return
        if self._method.answer is not None:
            self._method.answer(self, message)

    def cancel(self) -> None:
        if self.is_done:
            return
        self._finish()
        if self.on_cancel is not None:
            self.on_cancel()

    # -- own -----------------------------------------------------------------------------------

    def _finish(self) -> None:
        self.is_done = True
        if self._deadline is not None:
            self._deadline.cancel()

    def _expire(self) -> None:
        if self.is_done:
            return
        if self.on_cancel is not None:
            self.on_cancel()
        self.fail(RequestExpired("Deadline Exceeded"))

    def _pass_messages(self, receiver: MessageReceiver) -> None:
        """Pass on what has arrived, until the receiver is full."""
        data, at = self._buffer, self._passed
        self._is_passing = True
        try:
            while len(data) - at >= 5 and not receiver.is_full:
                end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
                self._check_length(end - at - 5)
                if len(data) < end:
                    break
                receiver.receive(self._message(data[at], memoryview(data)[at + 5 : end]))
                if self.is_done:
                    return
                at = end
        finally:
            self._is_passing = False
            self._passed = at
            if at == len(data):
                self._buffer, self._passed = b"", 0

    def _end_messages(self, receiver: MessageReceiver) -> None:
        """End after the last message; one that is full has not got it yet."""
        if self.is_done or not self._has_ended or receiver.is_full:
            return
        if self._buffer:
            self.fail(RequestInvalid("the last message is incomplete"))
        else:
            receiver.end()

    def _check_length(self, length: int) -> None:
        if length > self._max_bytes:
            raise RequestTooLarge(
                f"the message has {length:,} bytes, the server accepts {self._max_bytes:,}"
            )

    def _message(self, is_compressed: int, data: memoryview) -> Received:
        if not is_compressed:
            return data
        window = _ZLIB_WINDOW_BITS.get(self._encoding)
        if window is None:
            raise NotSupported("the message's compression is neither gzip nor deflate")
        reader = zlib.decompressobj(window)
        try:
            found = reader.decompress(data, self._max_bytes + 1)
        except zlib.error:
            raise RequestInvalid("the message cannot be decompressed") from None
        self._check_length(len(found))
        if not reader.eof:
            raise RequestInvalid("the message cannot be decompressed: it is incomplete")
        if reader.unused_data:
            raise RequestInvalid("the compressed message has bytes after its end")
        return found


def _prefixed(message: bytes) -> bytes:
    return b"".join((b"\0", len(message).to_bytes(4, "big"), message))


def _seconds(timeout: bytes) -> float:
    """A client's deadline: at most 8 digits and a unit. A malformed one counts as expired."""
    found = _TIMEOUT.fullmatch(timeout)
    return int(found[1]) * _UNITS[found[2]] if found else 0.0


def _percent_encoded(text: str) -> bytes:
    """An error's text as a header's value."""
    data = text.encode()[:_MAX_TEXT]
    return b"".join(
        bytes((each,)) if 0x20 <= each < 0x7F and each != 0x25 else b"%%%02X" % each
        for each in data
    )
