"""SocketConnection: a worker's connection to a parameter server, made again when it is lost."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from onward.distributed.parameter_server.server_requests import (
    Header,
    Tensors,
    pack_tensors,
    unpack_tensors,
)
from onward.distributed.parameter_server.socket_handshake import check_token, greet_server
from onward.errors import DistributedError, OptionError, PeerLost
from onward.programs.program import Array
from onward.workers import messages

log = logging.getLogger("onward")

_LONGEST_PAUSE = 2.0  # seconds between two tries to connect
_CONNECT = 10.0  # seconds that one try to connect may take
_FAREWELL = 3.0  # seconds that the last request may take


class SocketConnection:
    """Sends requests to the parameter server at an address, one after the other.

    A lost connection is made again, and the request sent again, for `patience` seconds.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        patience: float = 60.0,
        pause: Callable[[float], Any] = time.sleep,
    ) -> None:
        self.address = address
        self._host, self._port = _split(address)
        self._token, self._patience, self._pause = check_token(token), patience, pause
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._file: Any = None
        self._is_closed = False
        self.reconnected = 0

    def ask(self, header: Header, tensors: Tensors) -> tuple[Header, dict[str, Array]]:
        """Send a request and return its answer; PeerLost where the server is gone for good."""
        with self._lock:
            reply, found = self._ask_until_answered(header, tensors)
        if "error" in reply:
            raise DistributedError(str(reply["error"]))
        return reply, found

    def _ask_until_answered(
        self, header: Header, tensors: Tensors
    ) -> tuple[Header, dict[str, Array]]:
        end, pause = time.monotonic() + self._patience, 0.05
        while True:
            try:
                return self._ask_once(header, tensors)
            except (OSError, EOFError) as error:
                self._drop()
                if self._is_closed or time.monotonic() >= end:
                    raise PeerLost(
                        f"the parameter server at {self.address} did not answer for "
                        f"{self._patience:g} s: {error}\n"
                        "check that it runs, or start it again: it continues from its checkpoint"
                    ) from error
                log.info("parameter server at %s: %s; connecting again", self.address, error)
                self._pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                self.reconnected += 1
            except BaseException:  # the next request would get this answer
                self._drop()
                raise

    def _ask_once(self, header: Header, tensors: Tensors) -> tuple[Header, dict[str, Array]]:
        if self._file is None:
            self._connect()
        data: list[messages.Buffer] = []
        messages.send(self._file, {**header, "tensors": pack_tensors(tensors, data)}, data)
        try:
            reply, buffers = messages.receive(self._file)
            found = unpack_tensors(reply.pop("tensors", {}), buffers)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DistributedError(
                f"the parameter server at {self.address} sent a malformed answer: {error}"
            ) from error
        return reply, found

    def _connect(self) -> None:
        if self._is_closed:
            raise ConnectionError("the connection was ended")
        opened = socket.create_connection((self._host, self._port), timeout=_CONNECT)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greet_server(opened, self._token, self.address)
            opened.settimeout(self._patience)
        except BaseException:
            opened.close()
            raise
        self._socket, self._file = opened, opened.makefile("rwb", buffering=0)

    def _drop(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._file.close()
                self._socket.close()
        self._socket = self._file = None

    def end(self, last: Header) -> None:
        """End the connection, after a last request if the server answers at once."""
        self._is_closed = True  # no caller waits for the server any longer
        if not self._lock.acquire(timeout=_FAREWELL):
            opened = self._socket
            if opened is not None:
                with contextlib.suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)
            return
        try:
            if self._socket is not None:
                self._socket.settimeout(_FAREWELL)
                with contextlib.suppress(OSError, EOFError, DistributedError):
                    self._ask_once(last, {})
        finally:
            self._drop()
            self._lock.release()


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise OptionError(
            f"the address of a parameter server must be host:port, not {address!r}\n"
            "give what its `listen` returned, such as '10.0.0.5:7077'"
        )
    return host.strip("[]"), int(port)
