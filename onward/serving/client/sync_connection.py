"""Blocking connections to servers, kept open between requests."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable

from onward.serving.client.call_attempts import ExchangeFailed, Send
from onward.serving.client.client_protocol import HttpResponse
from onward.serving.client.response_reader import MAX_HEAD, Want, read_response, request_head
from onward.serving.client.server_choice import ServerEndpoint

_RECEIVE = 64 << 10  # bytes of one read of a head
_MAX_IDLE = 64  # connections of one server that wait for the next request


class SyncConnections:
    """The connections of a blocking client. Threads may share it."""

    def __init__(
        self, headers: str, tls: ssl.SSLContext | None, clock: Callable[[], float]
    ) -> None:
        self._headers, self._tls, self._clock = headers, tls, clock
        self._idle: dict[ServerEndpoint, list[_Connection]] = {}
        self._lock = threading.Lock()

    def exchange(self, send: Send) -> HttpResponse:
        """Send a request and read its response. ExchangeFailed: there is none."""
        end = None if send.seconds is None else self._clock() + send.seconds
        connection = self._take(send.server)
        if connection is None:
            connection = self._connect(send.server, end)
        head = request_head(send.request, send.server, self._headers)
        try:
            connection.end = end
            connection.write((head, *send.request.body))
            response, keeps = connection.read()
        except TimeoutError:
            connection.close()
            raise ExchangeFailed("timed out", was_sent=True, timed_out=True) from None
        except (OSError, ValueError) as error:
            connection.close()
            raise ExchangeFailed(f"the connection failed: {error}", was_sent=True) from error
        except BaseException:
            connection.close()
            raise
        self._give_back(send.server, connection, keeps)
        return response

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for each in connections:
                each.close()

    def _take(self, server: ServerEndpoint) -> _Connection | None:
        """An idle connection that the server has not closed."""
        while True:
            with self._lock:
                idle = self._idle.get(server)
                connection = idle.pop() if idle else None
            if connection is None or connection.is_open():
                return connection
            connection.close()

    def _give_back(self, server: ServerEndpoint, connection: _Connection, keeps: bool) -> None:
        with self._lock:
            idle = self._idle.setdefault(server, [])
            if keeps and len(idle) < _MAX_IDLE:
                idle.append(connection)
                return
        connection.close()

    def _connect(self, server: ServerEndpoint, end: float | None) -> _Connection:
        left = None if end is None else end - self._clock()
        if left is not None and left <= 0:
            raise ExchangeFailed("no time left to connect", was_sent=False, timed_out=True)
        try:
            plain = socket.create_connection((server.host, server.port), left)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not server.is_tls:
                return _Connection(plain, self._clock)
            tls = self._tls or ssl.create_default_context()
            return _Connection(tls.wrap_socket(plain, server_hostname=server.host), self._clock)
        except TimeoutError:
            raise ExchangeFailed("connecting timed out", was_sent=False, timed_out=True) from None
        except OSError as error:
            raise ExchangeFailed(f"cannot connect: {error}", was_sent=False) from error


class _Connection:
    """One socket, and the bytes that were received but not used yet."""

    def __init__(self, sock: socket.socket, clock: Callable[[], float]) -> None:
        self._socket, self._clock = sock, clock
        self._ahead = bytearray()
        self.end: float | None = None

    def close(self) -> None:
        self._socket.close()

    def is_open(self) -> bool:
        """Whether it is idle: data now would mean that it was closed, or an unexpected response."""
        try:
            return not self._ahead and not select.select([self._socket], [], [], 0)[0]
        except (OSError, ValueError):
            return False

    def write(self, parts: tuple[bytes | memoryview, ...]) -> None:
        self._limit()
        if sum(map(len, parts)) <= _RECEIVE:  # one packet rather than several
            self._socket.sendall(b"".join(parts))
            return
        for part in parts:
            self._limit()
            self._socket.sendall(part)

    def read(self) -> tuple[HttpResponse, bool]:
        reading = read_response()
        want = next(reading)
        while True:
            data = self._exactly(want) if isinstance(want, int) else self._until(want)
            try:
                want = reading.send(data)
            except StopIteration as end:
                found: tuple[HttpResponse, bool] = end.value
                return found

    def _limit(self) -> None:
        """The socket waits until the deadline at most."""
        left = None if self.end is None else self.end - self._clock()
        if left is not None and left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def _until(self, want: Want) -> bytearray:
        """Bytes up to a separator, or to the end of the connection."""
        ahead, found = self._ahead, -1
        while want is Want.UNTIL_END or (found := ahead.find(want.value)) < 0:
            if want is not Want.UNTIL_END and len(ahead) > MAX_HEAD:
                raise ValueError("the head of the response is too long")
            self._limit()
            data = self._socket.recv(_RECEIVE)
            ahead += data
            if not data:
                if want is Want.UNTIL_END:
                    break
                raise ConnectionResetError("the server closed the connection")
        end = len(ahead) if want is Want.UNTIL_END else found + len(want.value)
        part = ahead[:end]
        del ahead[:end]
        return part

    def _exactly(self, size: int) -> bytearray:
        if len(self._ahead) >= size:
            part = self._ahead[:size]
            del self._ahead[:size]
            return part
        data = bytearray(size)
        at = len(self._ahead)
        data[:at] = self._ahead
        self._ahead.clear()
        view = memoryview(data)
        while at < size:
            self._limit()
            got = self._socket.recv_into(view[at:])
            if not got:
                raise ConnectionResetError("the server closed it within a response")
            at += got
        return data
