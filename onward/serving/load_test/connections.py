"""A connection that sends prepared requests and says how each was answered: HTTP and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import SplitResult

import httptools

from onward.serving.load_test.load_figures import LOST


class LoadConnection(Protocol):
    """One request at a time. `intended` is when its request should have started."""

    intended: float
    sent: float
    is_busy: bool

    def send(self, payload: bytes, intended: float, now: float) -> None: ...

    def abort(self) -> None:
        """Close at once; a request that is not answered is forgotten."""
        ...


# Called for each answer: the connection, "200" or LOST, good or not, and whether it stays open.
Answered = Callable[[LoadConnection, str, bool, bool], None]
Closed = Callable[[LoadConnection], None]  # called when a connection without a request is closed
Open = Callable[[Answered, Closed], Any]  # a coroutine that opens a connection


class HttpLoadConnection(asyncio.Protocol):
    """HTTP/1.1: one write per request; of an answer, only the status and the end are read."""

    def __init__(self, answered: Answered, closed: Closed) -> None:
        self._answered, self._closed = answered, closed
        # the parser calls the `on_*` methods that this class has, and skips all else in C
        self._parser = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self.intended = self.sent = 0.0
        self.is_busy = False

    def send(self, payload: bytes, intended: float, now: float) -> None:
        self.intended, self.sent, self.is_busy = intended, now, True
        self._transport.write(payload)

    def abort(self) -> None:
        self.is_busy = False
        self._answered, self._closed = _ignore, _ignore
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # such as 100 Continue: the answer follows
            return
        stays = self._parser.should_keep_alive()
        self.is_busy = False
        if not stays:
            self._transport.close()
            self._closed = _ignore
        self._answered(self, str(status), status < 300, stays)

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_busy:
            self.is_busy = False
            self._answered(self, LOST, False, False)
        else:
            self._closed(self)


class GrpcLoadConnection:
    """A channel of its own, which sends the bytes of a ModelInferRequest."""

    def __init__(self, target: str, answered: Answered, closed: Closed) -> None:
        import grpc.aio

        self._failed = grpc.aio.AioRpcError
        own = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(target, options=own)
        self._infer = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        self._answered = answered
        self._task: asyncio.Task[None] | None = None
        self.intended = self.sent = 0.0
        self.is_busy = False

    def send(self, payload: bytes, intended: float, now: float) -> None:
        self.intended, self.sent, self.is_busy = intended, now, True
        self._task = asyncio.get_running_loop().create_task(self._call(payload))

    async def _call(self, payload: bytes) -> None:
        code = "OK"
        try:
            await self._infer(payload)
        except self._failed as error:
            code = error.code().name
        self.is_busy = False
        self._answered(self, code, code == "OK", True)

    def abort(self) -> None:
        self.is_busy = False
        if self._task is not None:
            self._task.cancel()
        self._closing = asyncio.get_running_loop().create_task(self._channel.close(None))

    async def wait_closed(self) -> None:
        """Wait until the channel is closed, after `abort`."""
        with contextlib.suppress(asyncio.CancelledError):
            if self._task is not None:
                await self._task
        await self._closing


def connection_opener(url: SplitResult) -> Open:
    """A function that opens connections to a server."""
    if url.scheme == "grpc":

        async def open_grpc(answered: Answered, closed: Closed) -> LoadConnection:
            return GrpcLoadConnection(url.netloc, answered, closed)

        return open_grpc
    security = ssl.create_default_context() if url.scheme == "https" else None

    async def open_http(answered: Answered, closed: Closed) -> LoadConnection:
        port = url.port or (443 if security else 80)
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: HttpLoadConnection(answered, closed), url.hostname or "", port, ssl=security
        )
        return connection

    return open_http


def _ignore(*_: Any) -> None:
    return None
