"""One stream of an HTTP/2 connection: what was received, and what waits to be sent."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from onward.serving.grpc.http2_headers import Header

Received = bytes | memoryview  # a view holds the bytes that the socket gave


class StreamHandler(Protocol):
    """The owner of a stream; called by the connection."""

    @property
    def is_full(self) -> bool:
        """Whether the client shall wait before it sends more."""
        ...

    def receive(self, data: Received) -> None: ...

    def end(self) -> None:
        """The client sent all."""
        ...

    def cancel(self) -> None:
        """The client cancelled the stream, or its connection is lost."""
        ...


class OpenStream(Protocol):
    """Makes the handler of a new stream."""

    def __call__(self, stream: Stream, headers: list[Header]) -> StreamHandler: ...


class StreamConnection(Protocol):
    """What a stream needs of its connection."""

    client: str  # the address that it came from

    def send(self, stream: Stream) -> None: ...

    def resume(self, stream: Stream) -> None: ...


class Stream:
    """Queues of one stream. The connection sends them as far as the windows allow."""

    __slots__ = (
        "connection", "handler", "has_ended", "has_finished", "headers", "id", "parts", "started",
        "trailers", "unacknowledged", "window",
    )  # fmt: skip

    def __init__(self, connection: StreamConnection, id: int, window: int, started: float) -> None:
        self.connection = connection
        self.id = id
        self.handler: StreamHandler
        self.started = started
        self.window = window  # bytes that the client takes now
        self.unacknowledged = 0  # bytes received that the client may not yet send again
        self.has_ended = False  # the client sent all
        self.has_finished = False  # the server queued all
        self.headers = b""  # encoded, not yet sent
        self.parts: deque[memoryview] = deque()
        self.trailers = b""

    def write(self, headers: bytes, data: bytes = b"", trailers: bytes = b"") -> None:
        """Queue headers once, then data, then trailers, which end the stream."""
        if self.has_finished:
            return
        if headers:
            self.headers = headers
        if data:
            self.parts.append(memoryview(data))
        if trailers:
            self.trailers = trailers
            self.has_finished = True
        self.connection.send(self)

    def resume(self) -> None:
        """Let the client send more, after `handler.is_full` became false."""
        self.connection.resume(self)
