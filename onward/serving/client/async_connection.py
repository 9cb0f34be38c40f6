"""Connections of the asynchronous client, kept open between requests."""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import StreamReader, StreamWriter

from onward.serving.client.call_attempts import ExchangeFailed, Send
from onward.serving.client.client_protocol import HttpResponse
from onward.serving.client.response_reader import Want, read_response, request_head
from onward.serving.client.server_choice import ServerEndpoint

_LIMIT = 1 << 20  # bytes that a stream reads ahead
_MAX_IDLE = 256  # connections of one server that wait for the next request


class AsyncConnections:
    """The connections of an asynchronous client, in one event loop."""

    def __init__(self, headers: str, tls: ssl.SSLContext | None) -> None:
        self._headers, self._tls = headers, tls
        self._idle: dict[ServerEndpoint, list[tuple[StreamReader, StreamWriter]]] = {}

    async def exchange(self, send: Send) -> HttpResponse:
        """Send a request and read its response. ExchangeFailed: there is none."""
        was_sent, writer = False, None
        try:
            async with asyncio.timeout(send.seconds):
                reader, writer = self._take(send.server) or await self._connect(send.server)
                head = request_head(send.request, send.server, self._headers)
                was_sent = True
                await _write(writer, (head, *send.request.body))
                response, keeps = await _read(reader)
        except TimeoutError:
            _close(writer)
            raise ExchangeFailed("timed out", was_sent=was_sent, timed_out=True) from None
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
            _close(writer)
            what = "the connection failed" if was_sent else "cannot connect"
            raise ExchangeFailed(f"{what}: {error}", was_sent=was_sent) from error
        except BaseException:  # cancelled: the server sees the connection close
            _close(writer)
            raise
        idle = self._idle.setdefault(send.server, [])
        if keeps and len(idle) < _MAX_IDLE:
            idle.append((reader, writer))
        else:
            _close(writer)
        return response

    async def close(self) -> None:
        idle, self._idle = self._idle, {}
        writers = [writer for pairs in idle.values() for _, writer in pairs]
        for writer in writers:
            writer.close()
        await asyncio.gather(*(each.wait_closed() for each in writers), return_exceptions=True)

    def _take(self, server: ServerEndpoint) -> tuple[StreamReader, StreamWriter] | None:
        idle = self._idle.get(server)
        while idle:
            reader, writer = idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            _close(writer)
        return None

    async def _connect(self, server: ServerEndpoint) -> tuple[StreamReader, StreamWriter]:
        tls = (self._tls or ssl.create_default_context()) if server.is_tls else None
        reader, writer = await asyncio.open_connection(
            server.host, server.port, ssl=tls, limit=_LIMIT
        )
        own: socket.socket | None = writer.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return reader, writer


def _close(writer: StreamWriter | None) -> None:
    if writer is not None:
        writer.close()


async def _write(writer: StreamWriter, parts: tuple[bytes | memoryview, ...]) -> None:
    writer.writelines(parts)
    await writer.drain()


async def _read(reader: StreamReader) -> tuple[HttpResponse, bool]:
    reading = read_response()
    want = next(reading)
    while True:
        if isinstance(want, int):
            data = await reader.readexactly(want)
        elif want is Want.UNTIL_END:
            data = await reader.read(-1)
        else:
            data = await reader.readuntil(want.value)
        try:
            want = reading.send(data)
        except StopIteration as end:
            found: tuple[HttpResponse, bool] = end.value
            return found
