"""The models of a server: what a folder has, what clients load and unload.

repository = Repository(settings, loop=loop, clock=time.monotonic)
await repository.open(Path("models"))
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onward.errors import ModelNotFound, OnwardError, OptionError, RequestInvalid
from onward.measure.memory.resident_memory import release_free_memory
from onward.serving.models.ensemble import Ensemble
from onward.serving.models.ensemble_graph import loading_order, read_ensemble
from onward.serving.models.model_config import is_ensemble, read_override
from onward.serving.models.model_folder import ModelFiles, find_model, find_models, read_folder
from onward.serving.models.model_loading import LoadFailure, ModelLoader
from onward.serving.models.model_table import Model, ModelTable, describe
from onward.serving.models.open_instances import open_instances
from onward.serving.models.open_model import OpenInstances, normal_config, open_source, settings_for
from onward.serving.models.served import Clock, ServedFactory
from onward.serving.models.uploads import write_uploads
from onward.serving.observer import NoObserver, Observer
from onward.serving.settings import ModelSettings, ServingSettings

_LOG = logging.getLogger("onward.serving")


class Repository:
    """Models by name and version. All methods are called in the event loop's thread."""

    def __init__(
        self,
        settings: ServingSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        observer: Observer | None = None,
        factory: ServedFactory | None = None,
        opener: OpenInstances = open_instances,
    ) -> None:
        self.table = ModelTable()
        self.root: Path | None = None  # the file or folder that is served
        self._settings, self._clock = settings, clock
        self._loader = ModelLoader(
            self.table, settings, loop, clock, observer or NoObserver(), factory, opener
        )
        self.submit, self.signature = self._loader.submit, self._loader.signature

    async def open(self, path: Path) -> None:
        """Load the models of a file or folder. Broken ones are logged, unless all are broken."""
        found = await self._loader.blocking(lambda: find_models(path))
        self.root = path
        for files in found:
            self.table.models[files.name] = Model(files.name)
        plain = [files for files in found if not _is_ensemble(files)]
        failures = [*await asyncio.gather(*(self._load(files.name) for files in plain))]
        for name in loading_order({f.name: f.config or {} for f in found if _is_ensemble(f)}):
            failures.append(await self._load(name))
        if not found:
            _LOG.warning("there are no models in %s", path)
        elif None not in failures:
            first = next(failure for failure in failures if failure is not None)
            raise first.as_error()

    async def add(self, name: str, source: Any, settings: ModelSettings | None = None) -> None:
        """Serve a session, a function, or a model's file under a name."""
        model = self.table.models.setdefault(name, Model(name))
        try:
            if isinstance(source, (str, Path)):
                model.path, model.settings = Path(source), settings
                failure = await self._load(name)
                if failure is not None:
                    raise failure.as_error()
                return
            chosen = settings or settings_for(name, None, self._settings)[0]
            async with model.lock:
                opened = await self._loader.blocking(lambda: open_source(source, chosen))
                await self._loader.serve(model, 1, opened)
        except BaseException:
            if not _is_served(model):
                self.table.models.pop(name, None)
            raise

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load or reload a model for a client; RequestInvalid says why it is not ready."""
        override = parameters.get("config")
        try:
            config = None if override is None else read_override(override)
        except OptionError as error:
            raise RequestInvalid(f"failed to load {name!r}: {error}") from error
        uploads = await self._loader.blocking(lambda: write_uploads(parameters))
        model = self.table.models.get(name) or Model(name)
        async with model.control:
            before = (model.override, model.uploads)
            model.override, model.uploads = config, uploads
            try:
                if await self._find_files(model) is None and not _is_served(model):
                    raise ModelNotFound(
                        f"failed to load {name!r}, failed to poll from model repository"
                    )
                self.table.models[name] = model
                model.is_unloaded = False
                failure = await self._load(name, with_parts=True)
                if failure is not None:
                    raise _load_failed(name, failure)
            except BaseException:
                if uploads is not None:
                    uploads.cleanup()
                model.override, model.uploads = before
                raise
            if before[1] is not None:
                before[1].cleanup()

    async def reload(self, name: str) -> None:
        """Take changed files of a model; what fails is logged and kept for the index."""
        model = self.table.models.get(name) or Model(name)
        if model.is_unloaded or model.uploads is not None:
            return
        if await self._find_files(model) is not None:
            self.table.models[name] = model
            await self._load(name)
        elif name in self.table.models and model.files is not None and self._is_gone(model.files):
            await self.unload(name)
            self.table.models.pop(name, None)

    async def unload(self, name: str, with_dependents: bool = False) -> None:
        """Take a model out of service; its memory is free when this returns."""
        model = self.table.models.get(name)
        if model is None:
            raise ModelNotFound(f"Request for unknown model: {name!r} is not found")
        others = self._dependents(name) if with_dependents else []
        model.is_unloaded = True
        async with model.lock:
            for version in list(model.versions.values()):
                await self._loader.retire(model, version)
            if model.uploads is not None:
                model.uploads.cleanup()
                model.uploads = None
        for other in others:
            if other in self.table.models and not self.table.models[other].is_unloaded:
                await self.unload(other)
        await self._loader.blocking(_free_memory)

    async def drain(self, timeout: float) -> None:
        """Accept nothing more; wait for what runs. Ensembles first: their parts must still run."""
        served = [each for _, _, each in self.table.served()]
        ensembles = [each for each in served if isinstance(each, Ensemble)]
        start = self._clock()
        await asyncio.gather(*(each.drain(timeout) for each in ensembles))
        left = max(0.0, timeout - (self._clock() - start))
        await asyncio.gather(*(each.drain(left) for each in served if each not in ensembles))

    async def close(self) -> None:
        """Close every model."""
        for name in list(self.table.models):
            model = self.table.models.pop(name)
            for version in model.versions.values():
                if version.served is not None:
                    await version.served.close()
            if model.uploads is not None:
                model.uploads.cleanup()
            self.table.refresh(name)
        self._loader.close()

    async def _load(
        self, name: str, with_parts: bool = False, outer: frozenset[str] = frozenset()
    ) -> LoadFailure | None:
        """Load what has changed of a model; a session or function is as it was.

        `with_parts`: and of an ensemble's models, except the `outer` ones that are being loaded.
        """
        model = self.table.models[name]
        async with model.lock:
            try:
                files = await self._find_files(model)
            except OnwardError as error:
                return LoadFailure(error)
            if files is None:
                if _is_served(model):
                    return None
                return LoadFailure(ModelNotFound(f"model {name!r} has no files"))
            if with_parts:
                await self._load_parts(model, files, outer | {name})
            return await self._loader.load(model, files)

    async def _load_parts(self, model: Model, files: ModelFiles, outer: frozenset[str]) -> None:
        """Load the models of an ensemble that are not in service."""
        try:
            config = normal_config(files, model.override)
            if config is None or not is_ensemble(config):
                return
            parts = read_ensemble(model.name, config).models
        except OnwardError:
            return  # loading the model itself says why
        for part in parts:
            other = self.table.models.get(part) or Model(part)
            if part in outer:
                continue  # a cycle of ensembles, which checking it reports
            if self.table.ready_versions(part) or await self._find_files(other) is None:
                continue
            self.table.models[part] = other
            other.is_unloaded = False
            await self._load(part, with_parts=True, outer=outer)

    def _is_gone(self, files: ModelFiles) -> bool:
        """Whether a model was removed. A file that is being replaced is gone for a moment."""
        if self.root is None or self.root == next(iter(files.versions.values()), None):
            return False
        return self.root.is_dir() and not any(path.exists() for path in files.versions.values())

    def _dependents(self, name: str) -> list[str]:
        """The ensembles that need a model, and the models that only this ensemble needs."""
        graphs = {
            model.name: served.graph
            for model, _, served in self.table.served()
            if isinstance(served, Ensemble)
        }
        needing = [each for each, graph in graphs.items() if name in graph.models]
        if name not in graphs:
            return needing
        others = {part for each, graph in graphs.items() if each != name for part in graph.models}
        return [*needing, *(part for part in graphs[name].models if part not in others)]

    async def _find_files(self, model: Model) -> ModelFiles | None:
        """The model's files as they are now; None if there are none."""
        blocking = self._loader.blocking
        if model.uploads is not None:
            folder = Path(model.uploads.name)
            return replace(await blocking(lambda: read_folder(folder)), name=model.name)
        if model.path is not None:
            path = model.path
            found = await blocking(lambda: find_models(path))
            if len(found) != 1:
                raise OptionError(f"{path} is not one model: give the path of a file")
            return replace(found[0], name=model.name)
        root = self.root
        return None if root is None else await blocking(lambda: find_model(root, model.name))


def _is_ensemble(files: ModelFiles) -> bool:
    return is_ensemble(files.config)


def _is_served(model: Model) -> bool:
    return any(each.served is not None for each in model.versions.values())


def _load_failed(name: str, failure: LoadFailure) -> RequestInvalid:
    """The message to a client, in Triton's words."""
    reason = describe(failure.error)
    if failure.version is None:
        return RequestInvalid(f"failed to load {name!r}: {reason}")
    place = f"version {failure.version} is at UNAVAILABLE state"
    return RequestInvalid(f"load failed for model {name!r}: {place}: {reason}")


def _free_memory() -> None:
    gc.collect()
    release_free_memory()
