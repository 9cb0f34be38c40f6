"""Accept the clients of a socket that is about to close, which would reset their connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any

DRAIN_GRACE = 0.5  # seconds in which a request that is under way may arrive
_MOST = 2048


async def close_listening(
    server: asyncio.Server, accept: Callable[[socket.socket], Awaitable[Any]]
) -> None:
    """Listen no more. `accept` takes each client that is connected and was not accepted yet."""
    clients = [each for listening in server.sockets for each in _accept_all(listening)]
    server.close()
    accepted = [asyncio.ensure_future(accept(each)) for each in clients]
    if accepted:
        await asyncio.wait(accepted, timeout=DRAIN_GRACE)


def _accept_all(listening: Any) -> list[socket.socket]:
    """The clients whose connections wait to be accepted."""
    found: list[socket.socket] = []
    with socket.fromfd(listening.fileno(), listening.family, listening.type) as own:
        own.setblocking(False)
        with contextlib.suppress(OSError):  # there are no more
            while len(found) < _MOST:
                client, _ = own.accept()
                client.setblocking(False)
                found.append(client)
    return found
