"""Find out whether a client that ended its half of a connection is gone.

A client that left and one that only ended its half (`nc -N`) look the same. Bytes that are written
tell: the end of one that left refuses them. Each client takes `100 Continue` before an answer,
those of HTTP/1.0 apart.
"""

from __future__ import annotations

import asyncio
import math
import socket

from onward.serving.http.connection_limits import PROBE_AFTER

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientProbe:
    """Writes `100 Continue` once, and looks a little later whether it was refused."""

    __slots__ = ("_transport", "_was_sent")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._was_sent = False

    def advance(self, may_send: bool) -> float:
        """Send, or look, and end the connection of a client that is gone.

        Returns the seconds until the next step; infinity if there is none.
        """
        if self._was_sent:
            found = self._transport.get_extra_info("socket")
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._transport.abort()
        elif may_send:
            self._was_sent = True
            self._transport.write(CONTINUE)
            return PROBE_AFTER
        return math.inf
