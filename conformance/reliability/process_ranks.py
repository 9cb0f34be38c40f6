"""A group of two processes over a socket, which starts faster than torch: some are killed."""

from __future__ import annotations

import contextlib
import os
import time
from multiprocessing.connection import Client, Connection, Listener
from types import TracebackType
from typing import Any

from onward.errors import PeerLost

PATIENCE = 60.0  # seconds until the other process must be there


class ProcessRank:
    """Rank 0 or 1 of a group of two."""

    size = 2

    def __init__(self, rank: int, address: str) -> None:
        self.rank, self._address = rank, address
        self._listener: Listener | None = None

    def __enter__(self) -> ProcessRank:
        if self.rank == 0:
            waiting = self._address + ".new"  # so that no process connects before it listens
            self._listener = Listener(waiting)
            os.rename(waiting, self._address)
            self._peer: Connection[Any, Any] = self._listener.accept()
        else:
            self._peer = self._connect()
        return self

    def _connect(self) -> Connection[Any, Any]:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                return Client(self._address)
            time.sleep(0.01)
        raise PeerLost("the other process is not there\nthis is a test")

    def gather_objects(self, value: Any) -> list[Any]:
        try:
            self._peer.send(value)
            other = self._peer.recv()
        except (OSError, EOFError) as error:
            raise PeerLost("the other process is gone\nthis is a test") from error
        return [value, other] if self.rank == 0 else [other, value]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._peer.close()
        if self._listener is not None:
            with contextlib.suppress(OSError):  # its file has another name
                self._listener.close()
