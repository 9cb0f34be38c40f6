"""A core without models, shared memory without memory, and a server in a thread, for HTTP tests."""

from __future__ import annotations

import asyncio
import http.client
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import orjson
import uvloop

from onward.errors import ModelNotFound, RequestInvalid
from onward.serving.access import Access
from onward.serving.core import Json
from onward.serving.http.http_server import HttpServer
from onward.serving.requests import Cancel, Done, InferRequest, InferResponse, TensorSpec
from onward.serving.settings import ServingSettings

GUARD = 60.0  # seconds: a test that takes longer hangs


class FakeCore:
    """Models: double (2x), echo (any tensors), hold (answered by `release`), bug (raises)."""

    def __init__(self) -> None:
        self.held: list[tuple[InferRequest, Done]] = []
        self.requests: list[InferRequest] = []
        self.refused: list[tuple[str, str, str]] = []
        self.cancelled = threading.Event()
        self.arrived = threading.Event()
        self.loaded: dict[str, Any] = {}
        self.is_ready = True
        one = TensorSpec("x", "FP32", (-1, 4))
        self.models: dict[str, tuple[list[TensorSpec], list[TensorSpec]]] = {
            "double": ([one], [TensorSpec("y", "FP32", (-1, 4))]),
            "echo": ([one, TensorSpec("z", "BYTES", (-1,), is_optional=True)], [one]),
            "hold": ([one], [one]),
            "bug": ([one], [one]),
            "a b": ([one], [one]),
            "text": ([TensorSpec("t", "BYTES", (1,))], [TensorSpec("t", "BYTES", (1,))]),
        }

    def count_refused(
        self, name: str, version: str, error: Exception, request_id: str = ""
    ) -> None:
        self.refused.append((name, version, str(error)))

    def submit(self, request: InferRequest, done: Done) -> Cancel:
        self.requests.append(request)
        if request.model == "bug":
            raise KeyError("secret")
        if request.model == "hold":
            self.held.append((request, done))
            self.arrived.set()
            return self.cancelled.set
        try:
            self.signature(request.model, request.version)
            result: InferResponse | Exception = self.response(request)
        except (ModelNotFound, RequestInvalid) as error:
            result = error
        done(result)
        return lambda: None

    def response(self, request: InferRequest) -> InferResponse:
        outputs = dict(request.inputs)
        if request.model == "double":
            if "x" not in outputs:
                raise RequestInvalid("input 'x' is missing")
            outputs = {"y": request.inputs["x"] * 2}
        return InferResponse(request.model, request.version or "1", outputs, request.id)

    def signature(self, name: str, version: str = "") -> tuple[list[TensorSpec], list[TensorSpec]]:
        if name not in self.models or version not in ("", "1"):
            raise ModelNotFound(f"Request for unknown model: '{name}' is not found")
        return self.models[name]

    def labels(self, name: str, version: str, output: str) -> list[str]:
        return ["ant", "bee"] if output == "y" else []

    def is_model_ready(self, name: str, version: str = "") -> bool:
        self.signature(name, version)
        return name != "hold"

    def server_metadata(self) -> Json:
        return {"name": "onward", "version": "1", "extensions": ["binary_tensor_data"]}

    def model_metadata(self, name: str, version: str = "") -> Json:
        inputs, outputs = self.signature(name, version)
        return {
            "name": name,
            "versions": ["1"],
            "platform": "onnx",
            "inputs": [_metadata(each) for each in inputs],
            "outputs": [_metadata(each) for each in outputs],
        }

    def model_config(self, name: str, version: str = "") -> Json:
        self.signature(name, version)
        return {"name": name, "max_batch_size": 8}

    def statistics(self, name: str = "", version: str = "") -> Json:
        names = [name] if name else list(self.models)
        for each in names:
            self.signature(each, version)
        return {"model_stats": [{"name": each, "version": "1"} for each in names]}

    def index(self, only_ready: bool = False) -> list[Json]:
        return [{"name": name, "version": "1", "state": "READY"} for name in self.models]

    async def load(self, name: str, parameters: Json) -> None:
        if name not in self.models:
            raise RequestInvalid(f"failed to load '{name}', no such model")
        self.loaded[name] = parameters

    async def unload(self, name: str, with_dependents: bool = False) -> None:
        self.signature(name)
        self.loaded[name] = with_dependents


class FakeRegions:
    """Shared memory in a dictionary."""

    def __init__(self) -> None:
        self.regions: dict[str, bytearray] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        if byte_size > 1 << 20:
            raise RequestInvalid("too large")
        self.regions[name] = bytearray(byte_size)

    def unregister(self, name: str = "") -> None:
        if name:
            self.regions.pop(name, None)
        else:
            self.regions.clear()

    def status(self, name: str = "") -> list[dict[str, Any]]:
        if name and name not in self.regions:
            raise RequestInvalid(f"Unable to find system shared memory region: '{name}'")
        return [
            {"name": each, "key": "/k", "offset": 0, "byte_size": len(data)}
            for each, data in self.regions.items()
            if name in ("", each)
        ]

    def read(self, name: str, offset: int, byte_size: int) -> memoryview:
        if name not in self.regions or offset + byte_size > len(self.regions[name]):
            raise RequestInvalid(f"no such part of region {name!r}")
        return memoryview(self.regions[name])[offset : offset + byte_size]

    def write(self, name: str, offset: int, data: Any) -> None:
        self.regions[name][offset : offset + len(data)] = data


class Running:
    """A server that runs in a thread."""

    def __init__(self, core: FakeCore, regions: FakeRegions, settings: ServingSettings) -> None:
        self.core = core
        self.regions = regions
        self.settings = settings
        self.now = 0.0  # of the rate limit
        self.loop: asyncio.AbstractEventLoop
        self.server: HttpServer
        self.port = 0

    def call(self, work: Any) -> Any:
        """Run a function in the server's thread; a coroutine is awaited."""

        async def run() -> Any:
            found = work()
            return await found if asyncio.iscoroutine(found) else found

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(GUARD)

    def release(self) -> None:
        """Answer the requests of the model "hold"."""

        def answer() -> None:
            held, self.core.held = self.core.held, []
            for request, done in held:
                done(self.core.response(request))

        self.core.arrived.clear()
        self.call(answer)

    def expire(self, seconds: float) -> None:
        """Pretend that time has passed."""
        self.call(lambda: self.server.expire_connections(self.loop.time() + seconds))

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=GUARD)

    def socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=GUARD)

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body of one request."""
        connection = self.connect()
        try:
            connection.request(method, path, body or None, headers or {})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read()
        finally:
            connection.close()

    def ask_json(
        self, method: str, path: str, document: Any = None, **more: Any
    ) -> tuple[int, Any]:
        body = b"" if document is None else orjson.dumps(document)
        status, _, data = self.ask(method, path, body, **more)
        return status, orjson.loads(data)


@contextmanager
def running(
    *,
    admin: bool = False,
    extra_routes: Any = (),
    new_loop: Any = uvloop.new_event_loop,
    **settings: Any,
) -> Iterator[Running]:
    """A server on a free port, in a thread."""
    given = ServingSettings(**{"http_port": 0, **settings})
    running = Running(FakeCore(), FakeRegions(), given)
    logger = logging.getLogger("onward.serving")
    level = logger.level
    loop = running.loop = new_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> int:
        running.server = HttpServer(
            running.core,
            given,
            access=Access(given, lambda: running.now),
            shared_memory=running.regions,
            metrics=lambda: b"onward_up 1\n",
            extra_routes=extra_routes,
            admin=admin,
        )
        await running.server.start()
        return running.server.port

    try:
        running.port = running.call(start)
        yield running
    finally:
        if hasattr(running, "server"):
            running.call(lambda: running.server.stop(0))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(GUARD)
        loop.close()
        logger.setLevel(level)  # clients may change it


def floats(*rows: list[float]) -> dict[str, Any]:
    """An input "x" as JSON."""
    return {
        "name": "x",
        "datatype": "FP32",
        "shape": [len(rows), len(rows[0])],
        "data": np.array(rows).reshape(-1).tolist(),
    }


def _metadata(spec: TensorSpec) -> Json:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}
