"""The server without its transports: what HTTP and gRPC call, over the repository.

core = ServerCore(ServingSettings(), loop=asyncio.get_running_loop())
await core.open("model.onnx")
core.submit(request, done)
"""

from __future__ import annotations

import asyncio
import os
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from onward.errors import ModelUnavailable, NotSupported, ServingError
from onward.graph.paths import to_path
from onward.providers.ort.shared_threads import share_threads
from onward.serving.core import Json
from onward.serving.models.completed_config import ONNX, completed_config
from onward.serving.models.folder_watch import FolderWatch
from onward.serving.models.model_table import READY
from onward.serving.models.open_instances import open_instances
from onward.serving.models.open_model import OpenInstances
from onward.serving.models.repository import Repository
from onward.serving.models.served import Clock, ServedFactory
from onward.serving.observer import NoObserver, Observer, RequestTimes
from onward.serving.requests import Cancel, Done, InferRequest, TensorSpec
from onward.serving.settings import ModelSettings, ServingSettings

EXTENSIONS = [
    "classification", "sequence", "model_repository", "model_repository(unload_dependents)",
    "schedule_policy", "model_configuration", "system_shared_memory", "binary_tensor_data",
    "parameters", "statistics", "logging",
]  # fmt: skip


class ServerCore:
    """Implements Core. All methods are called in the event loop's thread."""

    def __init__(
        self,
        settings: ServingSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock = time.monotonic,
        observer: Observer | None = None,
        factory: ServedFactory | None = None,
        opener: OpenInstances = open_instances,
    ) -> None:
        self.settings = settings
        if settings.shared_threads:
            share_threads(settings.shared_threads)
        self.repository = Repository(
            settings, loop=loop, clock=clock, observer=observer, factory=factory, opener=opener
        )
        self._table = self.repository.table
        self._observer = observer or NoObserver()
        self._is_open = self.is_draining = False
        self._watch: FolderWatch | None = None

    async def open(self, path: str | os.PathLike[str]) -> None:
        """Load the models of a file or folder, and watch it if the settings say so."""
        given = to_path(path)
        await self.repository.open(given)
        self._is_open = True
        if self.settings.watch and self._watch is None:
            self._watch = FolderWatch(given, self.repository)
            self._watch.start()

    async def add(self, name: str, source: Any, settings: ModelSettings | None = None) -> None:
        """Serve a session, a function, or the model at a path under a name."""
        await self.repository.add(name, source, settings)
        self._is_open = True

    async def drain(self, timeout: float) -> None:
        """Refuse new requests and wait until those that were accepted are answered."""
        self.is_draining = True
        await self._stop_watching()
        await self.repository.drain(timeout)

    async def close(self) -> None:
        """Close all models."""
        self.is_draining = True
        await self._stop_watching()
        await self.repository.close()

    async def _stop_watching(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.stop()

    # -- Core ----------------------------------------------------------------------------------

    def submit(self, request: InferRequest, done: Done) -> Cancel:
        """Queue a request. A request that cannot be accepted is answered with `done(error)`."""
        try:
            if self.is_draining:
                raise ModelUnavailable("the server is shutting down", retry_after=1.0)
            served = self._table.find(request.model, request.version)
        except ServingError as error:
            self.count_refused(request.model, request.version, error, request.id)
            done(error)
            return _nothing
        return served.submit(request, done)

    def count_refused(
        self, name: str, version: str, error: Exception, request_id: str = ""
    ) -> None:
        """Count and log a request that no model got; names that clients invent are left out."""
        try:
            version = str(self._table.version(name, version).number)
        except ServingError:
            version = ""
            if name not in self._table.models:
                name = ""
        self._observer.on_request(name, version, request_id, RequestTimes(), error)

    def signature(self, name: str, version: str = "") -> tuple[list[TensorSpec], list[TensorSpec]]:
        """The inputs and outputs of a model that is ready."""
        return self.repository.signature(name, version)

    def labels(self, name: str, version: str, output: str) -> list[str]:
        """The labels of an output's classes; empty without them."""
        opened = self._table.version(name, version).opened
        return opened.labels.get(output, []) if opened is not None else []

    @property
    def is_ready(self) -> bool:
        """Loaded, not draining, no model stuck, queues below 90 % of their limits."""
        if not self._is_open or self.is_draining:
            return False
        return not any(
            served.is_nearly_full or served.is_stuck for _, _, served in self._table.served()
        )

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Whether requests are answered; an unknown model is not ready."""
        try:
            found = self._table.version(name, version)
        except ServingError:
            return False
        return self._table.state(found)[0] == READY

    def server_metadata(self) -> Json:
        return {"name": "onward", "version": _package_version(), "extensions": EXTENSIONS}

    def model_metadata(self, name: str, version: str = "") -> Json:
        found = self._table.version(name, version)
        inputs, outputs = self.signature(name, version)
        return {
            "name": name,
            "versions": self._table.ready_versions(name),
            "platform": found.opened.platform if found.opened is not None else ONNX,
            "inputs": [_tensor(spec) for spec in inputs],
            "outputs": [_tensor(spec) for spec in outputs],
        }

    def model_config(self, name: str, version: str = "") -> Json:
        found = self._table.version(name, version)
        served, opened = found.served, found.opened
        assert served is not None and opened is not None
        return completed_config(
            name, opened.platform, opened.config, opened.settings,
            served.inputs, served.outputs, served.batching, opened.filename,
        )  # fmt: skip

    def statistics(self, name: str = "", version: str = "") -> Json:
        """`{"model_stats": [...]}` of one model, or of all."""
        if name:
            self._table.version(name, version)  # refuses unknown ones
        rows = [
            {"name": model.name, "version": str(each.number), **served.statistics()}
            for model, each, served in self._table.served()
            if name in ("", model.name) and version in ("", str(each.number))
        ]
        return {"model_stats": sorted(rows, key=lambda row: (row["name"], int(row["version"])))}

    def index(self, only_ready: bool = False) -> list[Json]:
        """Name, version, state and reason of every model."""
        return self._table.index(only_ready)

    async def load(self, name: str, parameters: Json) -> None:
        """Load or reload a model; parameters: "config" (JSON), "file:1/model.onnx" (bytes)."""
        self._check_control()
        await self.repository.load(name, parameters)
        self._is_open = True

    async def unload(self, name: str, with_dependents: bool = False) -> None:
        """Take a model out of service, with the ensembles that need it and its own parts."""
        self._check_control()
        await self.repository.unload(name, with_dependents)

    def _check_control(self) -> None:
        if not self.settings.allow_model_control:
            raise NotSupported("clients may not load and unload models: allow_model_control is off")


def _tensor(spec: TensorSpec) -> Json:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _package_version() -> str:
    try:
        return version("onward")
    except PackageNotFoundError:
        return "unknown"


def _nothing() -> None:
    """The cancellation of a request that is answered already."""
