"""SocketServer: answers the requests of workers over TCP, a thread for each connection."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

from onward.distributed.parameter_server.server_requests import (
    Header,
    Tensors,
    pack_tensors,
    unpack_tensors,
)
from onward.distributed.parameter_server.socket_handshake import check_token, greet_client
from onward.errors import DistributedError, OnwardError
from onward.programs.program import Array
from onward.workers import messages

log = logging.getLogger("onward")

_GREETING = 10.0  # seconds that a client has for its greeting
_IDLE = 3600.0  # seconds after which a connection without requests is closed
_MOST_CONNECTIONS = 1000

Ask = Callable[[Header, Tensors], tuple[Header, dict[str, Array]]]


class SocketServer:
    """Listens at an address, and passes the requests of authenticated clients to `ask`.

    `limit`: the most bytes of tensors that a request may have.
    """

    def __init__(self, ask: Ask, token: str, host: str, port: int, limit: int) -> None:
        self._ask, self._token, self._limit = ask, check_token(token), limit
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            raise DistributedError(
                f"the parameter server cannot listen on {host}:{port}: {error.strerror or error}\n"
                "choose another port, or 0 for any free one"
            ) from error
        name = f"[{host}]" if ":" in host else host
        self.address = f"{name}:{self._socket.getsockname()[1]}"
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Stop listening, and close the connections after their current requests."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()
        self._accepting.join()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)  # an answer may still be sent
            threads = list(self._threads)
        for thread in threads:
            thread.join(_GREETING)

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._socket.accept()
            except OSError:  # closed
                return
            with self._lock:
                if len(self._connections) >= _MOST_CONNECTIONS:
                    log.warning("parameter server: too many connections, %s refused", peer[0])
                    connection.close()
                    continue
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self._connections.add(connection)
                self._threads.add(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_GREETING)
            if not greet_client(connection, self._token):
                log.warning("parameter server: a client with another token was refused")
                return
            connection.settimeout(_IDLE)
            with connection.makefile("rwb", buffering=0) as file:
                while True:
                    self._answer(file)
        except (OSError, EOFError):
            pass  # the client has gone
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("parameter server: a malformed request was refused: %s", error)
        finally:
            connection.close()
            with self._lock:
                self._connections.discard(connection)
                self._threads.discard(threading.current_thread())

    def _answer(self, file: Any) -> None:
        header, buffers = messages.receive(file, self._limit)
        tensors = unpack_tensors(header.pop("tensors", {}), buffers)
        data: list[messages.Buffer] = []
        try:
            answer, found = self._ask(header, tensors)
            reply = {**answer, "tensors": pack_tensors(found, data)}
        except OnwardError as error:  # it is raised again in the worker
            reply = {"error": str(error)}
        messages.send(file, reply, data)
