"""A parameter server as a Ray actor, for workers that are Ray tasks or actors.

    server = start_ray_server(open_session, ServerSettings(staleness=4), folder="/shared/runs/ps")

    @ray.remote
    def work(server, batches):
        return ParameterServerWorker(open_session(), RayConnection(server)).train(batches)

Requests are those of sockets; Ray's own transport carries them, with the trust that the cluster
has in its members: Ray pickles.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from onward.checkpoints.folder import Checkpoints
from onward.distributed.parameter_server.parameter_server import Answer, ParameterServer
from onward.distributed.parameter_server.server_requests import Header, Tensors
from onward.distributed.parameter_server.server_settings import ServerSettings
from onward.errors import PackageMissing, PeerLost
from onward.sessions.training.session import TrainingSession
from onward.settings import a_function

_MOST_REQUESTS = 100  # requests that wait at the same time: each is a thread of the actor


class RayParameterServer:
    """The actor: a parameter server that gets requests as method calls."""

    def __init__(
        self,
        open_session: Callable[[], TrainingSession],
        settings: ServerSettings,
        folder: str | None,
        every: int,
    ) -> None:
        checkpoints = None if folder is None else Checkpoints(folder, every=every)
        self._server = ParameterServer(open_session(), settings, checkpoints=checkpoints)

    def ask(self, header: Header, tensors: Tensors) -> Answer:
        """Answer a request of a worker."""
        return self._server.ask(header, tensors)

    def status(self) -> dict[str, Any]:
        """The version, the living workers and the counts."""
        server = self._server
        return {
            "version": server.version,
            "workers": server.workers,
            "counts": server.counts,
            "staleness": server.staleness,
        }

    def parameters(self) -> dict[str, Any]:
        """The current weights and statistics, by name."""
        return self._server.read()

    def close(self) -> None:
        """Save a checkpoint; workers wait for another server until their patience ends."""
        self._server.close()


def start_ray_server(
    open_session: Callable[[], TrainingSession],
    settings: ServerSettings | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    every: int = 100,
    resources: Mapping[str, Any] | None = None,
) -> Any:
    """Start a parameter server as a Ray actor, and return its handle for `RayConnection`.

    `open_session` is called in the actor. With a `folder` that all machines share, the server saves
    a checkpoint there every so many updates, and Ray starts it again from the last one where its
    machine is lost. `resources` are options of the actor, such as {"num_cpus": 4}.
    """
    ray = _import_ray()
    a_function("start_ray_server: open_session", open_session)
    actor = ray.remote(RayParameterServer).options(
        max_concurrency=_MOST_REQUESTS,
        max_restarts=0 if folder is None else -1,
        max_task_retries=0 if folder is None else -1,  # a request that is repeated acts once
        **dict(resources or {}),
    )
    place = None if folder is None else os.path.abspath(folder)
    return actor.remote(open_session, settings or ServerSettings(), place, every)


class RayConnection:
    """Connects a worker to a server, both on Ray; a server that starts again is waited for."""

    def __init__(self, server: Any, *, patience: float = 60.0) -> None:
        self._server, self._patience = server, patience

    def ask(self, header: Header, tensors: Tensors) -> Answer:
        ray = _import_ray()
        request = self._server.ask.remote(header, dict(tensors))
        try:
            answer: Answer = ray.get(request, timeout=self._patience)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            raise PeerLost(
                f"the parameter server on Ray is gone, or did not answer for {self._patience:g} s\n"
                "start it with a folder, so that Ray starts it again from its checkpoint"
            ) from error
        return answer

    def end(self, last: Header) -> None:
        self._server.ask.remote(last, {})


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise PackageMissing(
            f"Ray is not installed ({error})\ninstall it with: pip install 'ray[train]'"
        ) from error
    return ray
