"""ParameterServerWorker: computes gradients of its own batches for a parameter server."""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onward.distributed.parameter_server.server_requests import ServerConnection
from onward.distributed.parameter_server.server_shard import ServerShard, join_statuses
from onward.distributed.parameter_server.socket_connection import SocketConnection
from onward.errors import DistributedError, OnwardError, OptionError
from onward.providers.provider import Results
from onward.sessions.training.session import TrainingSession

log = logging.getLogger("onward")

_TRIES = 10  # times that a batch is computed again after its gradients were refused

Server = str | ServerConnection


class ParameterServerWorker:
    """Trains a model whose weights a parameter server holds, or several servers that share them.

    `session` has the program that the servers update; it only computes gradients. `server` is an
    address of `ParameterServer.listen`, a connection, or a list of them: one for each shard, the
    same order in all workers. `weight(feeds)` is the weight of a batch; None: its rows. A lost
    connection is made again for `patience` seconds. `counts` has what became of the batches.
    """

    def __init__(
        self,
        session: TrainingSession,
        server: Server | Sequence[Server],
        *,
        token: str = "",
        weight: Callable[[Mapping[str, Any]], float] | None = None,
        patience: float = 60.0,
    ) -> None:
        listed = (
            server if isinstance(server, Sequence) and not isinstance(server, str) else [server]
        )
        self.session, self.name = session, uuid.uuid4().hex
        self.counts: Counter[str] = Counter()
        self._weight = weight or self._rows
        connections = [_connect(each, token, patience) for each in listed]
        self._shards = [ServerShard(connection, self.name) for connection in connections]
        self._number = 0
        self._is_closed = threading.Event()
        try:
            self._join()
        except BaseException:
            self._leave()
            raise
        self._beating = threading.Thread(target=self._send_heartbeats, daemon=True)
        self._beating.start()

    def train(self, batches: Iterable[Mapping[str, Any]]) -> dict[str, int]:
        """Train on batches until they end, or the server has made all of its updates.

        Returns `counts`. The worker leaves the server at the end, after an error or Ctrl-C, too.
        """
        with self:
            for feeds in batches:
                if self.step(feeds) is None:
                    break
        return dict(self.counts)

    def step(self, feeds: Mapping[str, Any]) -> Results | None:
        """Pull the weights, compute the gradients of a batch and push them; the loss and outputs.

        None: the server has made all of its updates, and the batch was not used. A batch whose
        gradients the server refused as too old is computed again, with newer weights.
        """
        weight = float(self._weight(feeds))
        if weight == 0:
            self.counts["empty"] += 1
            return self.session.evaluate(feeds)
        for _ in range(_TRIES):
            drawn = self._pull()
            if drawn is None:
                return None
            self.session.draw_as(*drawn)
            results = self.session.run_forward(feeds)
            self.session.run_backward()
            status = self._push(weight)
            self.counts[status] += 1
            if status == "ended":
                return None
            if status == "malformed":
                raise _other_model("gradients")
            if status not in ("stale", "unknown"):
                return results
            log.info("worker %s: gradients were refused (%s), computing again", self.name, status)
        raise DistributedError(
            f"the parameter server refused the gradients of a batch {_TRIES} times\n"
            "its timeout may be shorter than a batch takes: give ServerSettings a longer one"
        )

    def close(self) -> None:
        """Leave the server and end the connections; closing twice is fine."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        self._leave()
        self._beating.join()

    def __enter__(self) -> ParameterServerWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- requests ------------------------------------------------------------------------------

    def _join(self) -> None:
        layout = self.session.program.layout
        weights = layout.weights()
        held: set[str] = set()
        for shard in self._shards:
            shard.join()
            for name, (dtype, shape) in {**shard.parameters, **shard.statistics}.items():
                spec = weights.get(name)
                if name in held or spec is None or (spec[0].name, list(spec[1])) != (dtype, shape):
                    raise _other_model(name)
                held.add(name)
        if missing := sorted(weights.keys() - held):
            raise _other_model(missing[0])

    def _leave(self) -> None:
        for shard in self._shards:
            shard.leave()

    def _pull(self) -> tuple[int, int] | None:
        """Take the newest weights; the position of the random numbers, or None at the end.

        Servers are asked in their order: a worker that holds the first never waits for one that
        waits for it.
        """
        drawn = None
        for shard in self._shards:
            found = shard.pull()
            if found is None:
                return None
            position, tensors = found
            self.session.set_parameters(tensors)
            drawn = position if drawn is None else drawn
        return drawn

    def _push(self, weight: float) -> str:
        gradients, statistics = self.session.get_gradients(), dict(self.session.statistics)
        tensors = (*gradients.values(), *statistics.values())
        finite = all(np.isfinite(tensor).all() for tensor in tensors)
        if finite:
            self.session.clear_gradients()
        else:
            self.session.update_weights()  # skips the update, and lowers a dynamic loss scale
        self._number += 1
        shares = [shard.share(gradients, statistics) if finite else {} for shard in self._shards]
        return join_statuses(
            [
                shard.push(self._number, weight, finite, share)
                for shard, share in zip(self._shards, shares)
            ]
        )

    def _rows(self, feeds: Mapping[str, Any]) -> float:
        shape = np.shape(feeds[self.session.program.inputs[0]])
        return float(shape[0]) if shape else 1.0

    def _send_heartbeats(self) -> None:
        """Tell the servers that this worker lives while it computes."""
        while not self._is_closed.wait(min(shard.timeout for shard in self._shards) / 4):
            for shard in self._shards:
                with contextlib.suppress(OnwardError):  # the next pull or push raises it
                    shard.send_heartbeat()


def _connect(server: Server, token: str, patience: float) -> ServerConnection:
    if isinstance(server, str):
        return SocketConnection(server, token, patience=patience)
    if not hasattr(server, "end"):
        raise OptionError(
            f"a worker needs the address of a parameter server, not a {type(server).__name__}\n"
            "give what `listen` returned; in the same process, server.connection()"
        )
    return server


def _other_model(name: str) -> OptionError:
    return OptionError(
        f"the parameter server trains another model than this worker: {name!r} differs\n"
        "give both the same program, and a worker the addresses of all servers that share it"
    )
