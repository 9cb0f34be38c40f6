"""Ray Serve with raw bodies: python ray_server.py CASE MODEL PORT BATCH"""

from __future__ import annotations

import signal
import sys
from typing import Any

import ray
from peer_model import CORES, PeerModel
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


def reply(data: bytes) -> Response:
    return Response(data, media_type="application/octet-stream")


@serve.deployment(max_ongoing_requests=256)
class Single:
    def __init__(self, case: str, path: str) -> None:
        self._model = PeerModel(case, path, threads=1)

    async def __call__(self, request: Request) -> Response:
        return reply(self._model.run_one(self._model.read(await request.body())))


@serve.deployment(max_ongoing_requests=256)
class Batched:
    def __init__(self, case: str, path: str) -> None:
        self._model = PeerModel(case, path, threads=1 if case == "mlp" else CORES)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.002)
    async def _run(self, items: list[Any]) -> list[bytes]:
        return self._model.run_batch(items)

    async def __call__(self, request: Request) -> Response:
        return reply(await self._run(self._model.read(await request.body())))


if __name__ == "__main__":
    case, path, port, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    serve.start(http_options={"host": "127.0.0.1", "port": port, "access_log": False})
    if batch > 1:
        app = Batched.bind(case, path)
    else:
        replicas = CORES if case == "minilm" else 1
        app = Single.options(num_replicas=replicas, ray_actor_options={"num_cpus": 0.5}).bind(
            case, path
        )
    serve.run(app, route_prefix="/")

    def stop(*_: Any) -> None:
        serve.shutdown()
        ray.shutdown()
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.pause()
