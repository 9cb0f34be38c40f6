"""The open connections of an HTTP server: their number, their deadlines, and draining them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from onward.serving.accept_waiting import DRAIN_GRACE

# Header lines of one request. Tensors are in the body; headers hold keys and ids.
MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 100
MAX_URL_BYTES = 8 << 10
# Requests of one connection that wait for their turn before the connection is no longer read.
MAX_PIPELINED = 8
# A body may take the header timeout, and one second more for each of these.
SLOWEST_BYTES_PER_SECOND = 10_000
# A client that ended its half of the connection: seconds until it is found out whether it is gone.
PROBE_AFTER = 1.0


class RegisteredConnection(Protocol):
    """A connection as its registry sees it."""

    deadline: float  # of the loop's clock

    def expire(self) -> None:
        """Called when the deadline has passed."""
        ...

    def close_if_idle(self) -> None: ...

    def abort(self) -> None: ...


class Connections:
    """The open connections, and whether the server still takes new ones."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: set[RegisteredConnection] = set()
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self.is_draining = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_flooded(self) -> bool:
        """So far over the limit that even refusing in words costs too much."""
        return len(self._open) > 2 * self._limit

    def add(self, connection: RegisteredConnection) -> bool:
        """Add a connection; False if there are too many, and it should be refused."""
        self._open.add(connection)
        self._all_closed.clear()
        return len(self._open) <= self._limit

    def remove(self, connection: RegisteredConnection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._all_closed.set()

    def expire(self, now: float) -> None:
        """End what is late: slow senders, slow readers, idle connections.

        One pass over all of them each second is cheaper than a timer for each request.
        """
        for connection in [each for each in self._open if each.deadline < now]:
            connection.expire()

    async def drain(self, timeout: float) -> None:
        """Wait until the requests under way are answered; after `timeout` seconds, cut them off."""
        self.is_draining = True
        grace = min(DRAIN_GRACE, timeout)
        if not await self._wait_closed(grace):
            for connection in list(self._open):
                connection.close_if_idle()
            await self._wait_closed(timeout - grace)
        for connection in list(self._open):
            connection.abort()

    async def _wait_closed(self, timeout: float) -> bool:
        try:
            await asyncio.wait_for(self._all_closed.wait(), timeout)
        except TimeoutError:
            return False
        return True
