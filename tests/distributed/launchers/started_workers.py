"""The workers that a launcher started, over their connections to the test."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("launched_worker.py")
LIMIT = 120.0  # seconds; a guard


class Worker:
    """A worker that has connected."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(LIMIT)
        self._connection, self._lines = connection, connection.makefile()
        self.told: dict[str, Any] = json.loads(self._lines.readline())

    def order(self, text: str) -> None:
        self._connection.sendall(text.encode() + b"\n")

    def next_line(self) -> str:
        """What it says next; empty when it is gone."""
        try:
            return self._lines.readline().strip()
        except ConnectionError:
            return ""

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


class Workers:
    """Waits for workers, and gives them back by rank."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.port = int(listener.getsockname()[1])
        self._known: list[Worker] = []

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(WORKER), str(self.port), *arguments]

    def wait(self, count: int) -> list[Worker]:
        found = [Worker(self._listener.accept()[0]) for _ in range(count)]
        self._known += found
        return sorted(found, key=lambda worker: int(worker.told["RANK"]))

    def close(self) -> None:
        for worker in self._known:
            worker.close()


@contextmanager
def listen() -> Iterator[Workers]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT)
        workers = Workers(listener)
        try:
            yield workers
        finally:
            workers.close()
