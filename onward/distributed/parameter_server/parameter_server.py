"""ParameterServer: holds the weights of a training run, and updates them by pushed gradients."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from onward.checkpoints.folder import Checkpoints
from onward.distributed.parameter_server.server_core import ParameterServerCore, Pulled
from onward.distributed.parameter_server.server_requests import (
    Header,
    Tensors,
    is_count,
    is_text,
    split_push,
)
from onward.distributed.parameter_server.server_settings import ServerSettings
from onward.distributed.parameter_server.session_updates import SessionUpdates
from onward.distributed.parameter_server.socket_server import SocketServer
from onward.errors import DistributedError, OptionError
from onward.programs.program import Array
from onward.sessions.training.session import TrainingSession
from onward.settings import finite_number, instance_of

log = logging.getLogger("onward")

_PATIENCE = 5.0  # seconds that a pull waits before its worker has to ask again
_is_session = instance_of(TrainingSession, "onward.TrainingSession(model, loss, optimizer)")

Answer = tuple[Header, dict[str, Array]]


class ParameterServer:
    """The weights of a training run, and the optimizer that updates them by pushed gradients.

    `session` makes the updates; only the server may use it. With `checkpoints`, the server
    continues from the latest one, and saves one whenever `checkpoints.due` says so and at its end.
    Workers reach it over sockets (`listen`), as a Ray actor, or in the same process (`ask`).
    """

    def __init__(
        self,
        session: TrainingSession,
        settings: ServerSettings | None = None,
        *,
        checkpoints: Checkpoints | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = ServerSettings() if settings is None else settings
        self._updates = SessionUpdates(_is_session("ParameterServer: session", session))
        self._core = ParameterServerCore(self._updates, self.settings, secrets.token_hex(8))
        self._checkpoints, self._clock = checkpoints, clock
        self._changed = threading.Condition()
        self._saved = -1
        self._is_closed = False
        self._sockets: SocketServer | None = None
        found = None if checkpoints is None else checkpoints.latest()
        if found is not None:
            state = self._updates.restore(found.tensors, found.properties, str(found.path))
            if state is not None:
                self._core.restore(state)
            self._saved = self.version

    # -- for the user --------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The number of updates."""
        return self._core.version

    @property
    def workers(self) -> list[str]:
        """The living workers."""
        with self._changed:
            self._core.expire(self._clock())
            return self._core.workers

    @property
    def counts(self) -> dict[str, int]:
        """How many pulls, waits, updates, gradients by what became of them, workers that came."""
        with self._changed:
            return dict(self._core.counts)

    @property
    def staleness(self) -> dict[int, int]:
        """How many of the gradients that were used had which staleness."""
        with self._changed:
            return dict(self._core.staleness)

    def read(self) -> dict[str, Array]:
        """A copy of the current weights and statistics, by name."""
        with self._changed:
            return {name: np.array(tensor) for name, tensor in self._updates.read().items()}

    def listen(self, token: str, host: str = "127.0.0.1", port: int = 0) -> str:
        """Answer workers that know the token, in threads; returns the address, "host:port"."""
        if self._sockets is not None:
            raise OptionError(f"the parameter server already listens on {self._sockets.address}")
        sizes = (*self._updates.parameters.values(), *self._updates.statistics.values())
        limit = sum(dtype.itemsize * _elements(shape) for dtype, shape in sizes)
        self._sockets = SocketServer(self.ask, token, host, port, limit)
        return self._sockets.address

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until training is over: all updates were made, or workers left and none remains.

        False: `timeout` seconds have passed, and it goes on.
        """
        end = None if timeout is None else self._clock() + timeout
        with self._changed:
            while not self._is_over():
                left = None if end is None else end - self._clock()
                if left is not None and left <= 0:
                    return False
                self._wait_for_change(1.0 if left is None else min(left, 1.0))
            return True

    def _is_over(self) -> bool:
        self._core.expire(self._clock())
        is_over = self._core.is_ended if self.settings.updates else self._core.counts["left"] > 0
        return self._is_closed or (is_over and not self._core.workers)

    def save(self) -> None:
        """Save a checkpoint now; an error is logged, and kept in `checkpoints.failures`."""
        with self._changed:
            if self._checkpoints is not None and self._saved != self.version:
                saved = self._updates.checkpoint(self._core.state())
                self._checkpoints.try_save(*saved, step=self.version)
                self._saved = self.version

    def close(self) -> None:
        """Stop listening and save a checkpoint; closing twice is fine.

        Workers wait for a server that continues from the checkpoint, until their patience ends.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None
        self.save()

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def connection(self) -> LocalConnection:
        """A connection for a worker in this process."""
        return LocalConnection(self)

    # -- for workers ---------------------------------------------------------------------------

    def ask(self, header: Header, tensors: Tensors) -> Answer:
        """Answer a request of a worker (server_requests.py); a pull may wait for an update."""
        handlers: Mapping[Any, Callable[[str, Header, Tensors], Answer]] = {
            "join": self._join,
            "pull": self._pull,
            "push": self._push,
            "alive": self._hear,
            "leave": self._leave,
        }
        handler, worker = handlers.get(header.get("do")), header.get("worker")
        if handler is None or not is_text(worker):
            raise DistributedError(f"not a request to a parameter server: {str(header)[:200]}")
        with self._changed:
            return handler(worker, header, tensors)

    def _join(self, worker: str, header: Header, tensors: Tensors) -> Answer:
        self._core.join(worker, self._clock())
        self._changed.notify_all()
        updates = self._updates
        return {
            "parameters": {name: _described(spec) for name, spec in updates.parameters.items()},
            "statistics": {name: _described(spec) for name, spec in updates.statistics.items()},
            "timeout": self.settings.timeout,
        }, {}

    def _pull(self, worker: str, header: Header, tensors: Tensors) -> Answer:
        history, version = header.get("history"), header.get("version")
        known = (history, version) if is_text(history) and is_count(version) else None
        end = self._clock() + min(_PATIENCE, self.settings.timeout / 4)
        while True:
            now = self._clock()
            found = "wait" if self._is_closed else self._core.pull(worker, now, known)
            if isinstance(found, Pulled):
                self._changed.notify_all()  # another pull may be next
                return {
                    "status": "pulled",
                    "history": self._core.history,
                    "version": found.version,
                    "draw": found.draw,
                }, found.tensors
            if found != "wait" or now >= end or self._is_closed:
                return {"status": found}, {}
            self._wait_for_change(end - now)

    def _push(self, worker: str, header: Header, tensors: Tensors) -> Answer:
        number, version = header.get("number"), header.get("version")
        weight = finite_number(header.get("weight"))
        if not (is_count(number) and is_count(version)) or weight is None:
            raise DistributedError(f"not a push to a parameter server: {str(header)[:200]}")
        gradients, statistics = split_push(tensors)
        finite = header.get("finite", True) is True
        pushed = self._core.push(
            worker,
            number,
            version,
            gradients if finite else None,
            float(weight),
            self._clock(),
            statistics,
        )
        if pushed.status == "applied" and not pushed.repeated and self._is_due():
            self.save()
        self._changed.notify_all()
        return {
            "status": pushed.status,
            "version": pushed.version,
            "repeated": pushed.repeated,
        }, {}

    def _is_due(self) -> bool:
        return self._checkpoints is not None and self._checkpoints.due(self.version)

    def _hear(self, worker: str, header: Header, tensors: Tensors) -> Answer:
        return {"known": self._core.hear(worker, self._clock())}, {}

    def _leave(self, worker: str, header: Header, tensors: Tensors) -> Answer:
        self._core.leave(worker, self._clock())
        self._changed.notify_all()
        return {}, {}

    def _wait_for_change(self, most: float) -> None:
        """Wait for another request, or until a worker would be dropped; at most so many seconds."""
        expiry = self._core.next_expiry()
        left = most if expiry is None else min(most, expiry - self._clock() + 0.01)
        self._changed.wait(max(left, 0.01))


class LocalConnection:
    """The connection of a worker to a parameter server in the same process."""

    def __init__(self, server: ParameterServer) -> None:
        self._server = server

    def ask(self, header: Header, tensors: Tensors) -> Answer:
        return self._server.ask(header, tensors)

    def end(self, last: Header) -> None:
        self._server.ask(last, {})


def _elements(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _described(spec: Any) -> list[Any]:
    dtype, shape = spec
    return [dtype.name, list(shape)]
