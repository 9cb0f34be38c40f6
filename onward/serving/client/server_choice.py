"""Which of several servers gets the next request: the one with the fewest that are not answered.

A server that cannot be reached is left out for a while, twice as long after each failure, and then
gets one request to show that it is back. Times are given, in seconds of any one clock.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from onward.errors import OptionError

_PORTS = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 8001}
_FIRST_PAUSE = 0.5  # seconds that a server is left out after its first failure
_LONGEST_PAUSE = 30.0


@dataclass(slots=True, eq=False)
class ServerEndpoint:
    """The address of a server, its open requests and its failures."""

    url: str
    host: str
    port: int
    is_tls: bool
    prefix: str = ""  # before each path
    is_grpc: bool = False
    outstanding: int = 0  # requests that are not answered yet
    failures: int = 0  # since its last answer
    left_out_until: float = 0.0


class ServerChoice:
    """The servers of a client."""

    def __init__(self, servers: Sequence[ServerEndpoint]) -> None:
        self.servers = list(servers)
        self._turn = 0
        self._lock = threading.Lock()  # a client may be shared by threads

    def pick(self, now: float, avoided: Collection[ServerEndpoint] = ()) -> ServerEndpoint:
        """The least busy server; `avoided` ones, and those that fail, if there is no other."""
        self._turn += 1
        count = len(self.servers)
        places = [(self._turn + place) % count for place in range(count)]  # ties take turns
        every = [self.servers[place] for place in places]
        admitted = [each for each in every if each.left_out_until <= now and not _tries(each)]
        others = [each for each in admitted if each not in avoided]
        if others or admitted:
            return min(others or admitted, key=lambda each: each.outstanding)
        return min(every, key=lambda each: (each in avoided, each.left_out_until))

    def on_start(self, server: ServerEndpoint) -> None:
        with self._lock:
            server.outstanding += 1

    def on_end(self, server: ServerEndpoint) -> None:
        with self._lock:
            server.outstanding -= 1

    def on_answer(self, server: ServerEndpoint) -> None:
        server.failures, server.left_out_until = 0, 0.0

    def on_failure(self, server: ServerEndpoint, now: float) -> None:
        """It could not be reached."""
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**server.failures)
        server.failures += 1
        server.left_out_until = now + pause


def _tries(server: ServerEndpoint) -> bool:
    """Whether a server that failed has its one request already."""
    return server.failures > 0 and server.outstanding > 0


def parse_url(url: str) -> ServerEndpoint:
    """A server from "http://host:8000", "https://host/prefix", "host:8000", "grpc://host:8001".

    >>> parse_url("localhost:8000").port
    8000
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in _PORTS or not parts.hostname or port == -1:
        raise OptionError(
            f"{url!r} is not the address of a server\ngive one such as http://localhost:8000"
        )
    prefix = parts.path.rstrip("/")
    return ServerEndpoint(
        url,
        parts.hostname,
        port or _PORTS[parts.scheme],
        is_tls=parts.scheme in ("https", "grpcs"),
        prefix=prefix,
        is_grpc=parts.scheme.startswith("grpc"),
    )
