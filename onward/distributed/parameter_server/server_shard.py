"""ServerShard: a worker's side of one parameter server, which holds all tensors or some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onward.distributed.parameter_server.server_requests import ServerConnection, join_push
from onward.programs.program import Array

Tensors = Mapping[str, Array]

_USED = ("applied", "kept", "skipped")


class ServerShard:
    """The requests of one worker to one server, and the version of its tensors that they got."""

    def __init__(self, connection: ServerConnection, worker: str) -> None:
        self._connection, self._worker = connection, worker
        self._known: dict[str, Any] = {}  # history and version of the last pull
        self.parameters: dict[str, list[Any]] = {}  # name: type, shape
        self.statistics: dict[str, list[Any]] = {}
        self.timeout = 60.0

    def join(self) -> None:
        """Become a worker of the server."""
        answer, _ = self._ask({"do": "join"})
        self.parameters, self.statistics = answer["parameters"], answer["statistics"]
        self.timeout = float(answer["timeout"])

    def pull(self) -> tuple[tuple[int, int], dict[str, Array]] | None:
        """Step and number of the random draws, and what changed; waits. None: training is over."""
        while True:
            answer, tensors = self._ask({"do": "pull", **self._known})
            if answer["status"] == "pulled":
                self._known = {"history": answer["history"], "version": answer["version"]}
                return (answer["version"], answer["draw"]), tensors
            if answer["status"] == "ended":
                return None
            if answer["status"] == "unknown":  # it was dropped, or the server started again
                self.join()

    def push(self, number: int, weight: float, finite: bool, tensors: Tensors) -> str:
        """Push gradients; what became of them."""
        answer, _ = self._ask(
            {
                "do": "push",
                "number": number,
                "version": self._known["version"],
                "weight": weight,
                "finite": finite,
            },
            tensors,
        )
        return str(answer["status"])

    def share(self, gradients: Tensors, statistics: Tensors) -> dict[str, Array]:
        """The tensors of a push that are this server's."""
        return join_push(
            {name: gradients[name] for name in self.parameters},
            {name: statistics[name] for name in self.statistics},
        )

    def send_heartbeat(self) -> None:
        """Tell the server that the worker is alive."""
        self._ask({"do": "alive"})

    def leave(self) -> None:
        """Leave the server, if it still answers, and end the connection."""
        self._connection.end({"do": "leave", "worker": self._worker})

    def _ask(
        self, header: dict[str, Any], tensors: Tensors | None = None
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        return self._connection.ask({**header, "worker": self._worker}, tensors or {})


def join_statuses(statuses: Sequence[str]) -> str:
    """What became of a push to several servers.

    >>> join_statuses(["applied", "applied"]), join_statuses(["applied", "stale"])
    ('applied', 'partial')
    >>> join_statuses(["stale", "unknown"])
    'stale'
    """
    if len(set(statuses)) == 1:
        return statuses[0]
    used = [status for status in statuses if status in _USED]
    if "malformed" in statuses:
        return "malformed"
    return "partial" if used else statuses[0]
