"""Bring versions of a model into service and take them out, while requests run.

A new version is opened and prepared first, then requests are routed to it, then the old one is
drained and closed. A version that cannot be opened leaves the old one in place.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from onward.errors import InvalidModel, OnwardError
from onward.lazy import LazyModule
from onward.serving.core import Json
from onward.serving.models.completed_config import ENSEMBLE
from onward.serving.models.config_fields import check_fields
from onward.serving.models.config_settings import settings_of_config
from onward.serving.models.ensemble import Ensemble
from onward.serving.models.ensemble_graph import read_ensemble
from onward.serving.models.memory_limit import check_memory
from onward.serving.models.model_config import OVERRIDE, is_ensemble
from onward.serving.models.model_folder import CONFIG, ModelFiles, fingerprint
from onward.serving.models.model_table import (
    LOADING,
    READY,
    UNAVAILABLE,
    UNLOADING,
    Model,
    ModelTable,
    ModelVersion,
    describe,
)
from onward.serving.models.open_model import (
    OpenedModel,
    OpenInstances,
    normal_config,
    open_model,
    read_labels,
    settings_for,
)
from onward.serving.models.served import Clock, Served, ServedFactory
from onward.serving.models.version_policy import choose_versions
from onward.serving.observer import Observer
from onward.serving.requests import Cancel, Done, InferRequest, TensorSpec
from onward.serving.settings import ModelSettings, ServingSettings

_served_model: Any = LazyModule("onward.serving.batching.served_model")
_LOG = logging.getLogger("onward.serving")
_OPENERS = 2  # models that are opened at the same time
T = TypeVar("T")


@dataclass(frozen=True)
class LoadFailure:
    """Why a model, or one version of it, could not be loaded."""

    error: Exception
    version: int | None = None

    def as_error(self) -> OnwardError:
        if isinstance(self.error, OnwardError):
            return self.error
        return InvalidModel(describe(self.error))


class ModelLoader:
    """Opens, prepares and retires versions. Called in the event loop's thread."""

    def __init__(
        self,
        table: ModelTable,
        settings: ServingSettings,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        observer: Observer,
        factory: ServedFactory | None,
        opener: OpenInstances,
    ) -> None:
        self._table, self._settings = table, settings
        self._loop, self._clock, self._observer = loop, clock, observer
        self._factory, self._opener = factory, opener
        self._executor = ThreadPoolExecutor(_OPENERS, thread_name_prefix="onward-load")
        self._noted: set[tuple[str, str]] = set()  # what has been logged once
        self._memory = threading.Lock()  # held while a model takes memory of a limit

    async def load(self, model: Model, files: ModelFiles) -> LoadFailure | None:
        """Load what has changed of a model; the first failure, if there is one."""
        try:
            if files.problem:
                raise InvalidModel(files.problem)
            config = normal_config(files, model.override)
            settings, ignored = ModelSettings(), list[str]()
            if model.settings is not None:
                settings = model.settings
            elif not is_ensemble(config):
                settings, ignored = settings_for(
                    model.name, config, self._settings, _where(model, files)
                )
            self._note(model.name, ignored)
            wanted = choose_versions(settings.version_policy, files.versions)
            if not wanted:
                raise InvalidModel(f"model {model.name!r} has no version that its policy serves")
            if config is not None:
                check_fields(config, _where(model, files))
        except Exception as error:
            before, model.problem = model.problem, describe(error)
            if model.problem != before:  # files of other models changed: nothing new to say
                _LOG.error("model %r: %s", model.name, model.problem)
            return LoadFailure(error.with_traceback(None))
        model.problem, model.files = "", files
        loads = [await self._load_version(model, files, n, config, settings) for n in wanted]
        failures = [each for each in loads if each is not None]
        if failures:  # versions that were to be replaced stay
            return failures[0]
        for number in sorted(set(model.versions) - set(wanted)):
            await self.retire(model, model.versions[number])
            if number not in files.versions:
                del model.versions[number]
        return None

    async def serve(
        self, model: Model, number: int, opened: OpenedModel, stamp: Hashable = None
    ) -> None:
        """Prepare a version, route requests to it, then drain and close its predecessor."""
        start = self._clock()
        served = self._make(model.name, number, opened)
        try:
            await served.prepare()
        except BaseException:
            await served.close()
            raise
        version = model.versions.setdefault(number, ModelVersion(number))
        old = version.served
        version.served, version.opened, version.stamp = served, opened, stamp
        version.state, version.reason = READY, ""
        self._table.refresh(model.name)
        seconds = self._clock() - start
        _LOG.info("model %r version %d is ready (%.2f s)", model.name, number, seconds)
        if old is not None:
            await self._end(old)

    async def retire(self, model: Model, version: ModelVersion, reason: str = "unloaded") -> None:
        """Take a version out of service: no new requests, then drain, then close."""
        served = version.served
        if served is not None:
            version.state, version.reason = UNLOADING, ""
            self._table.refresh(model.name)
            await self._end(served)
            _LOG.info("model %r version %d is unloaded", model.name, version.number)
        version.served = version.opened = version.stamp = None
        version.state, version.reason = UNAVAILABLE, reason
        self._table.refresh(model.name)

    async def blocking(self, function: Callable[[], T]) -> T:
        """Run a function that blocks in a thread."""
        return await self._loop.run_in_executor(self._executor, function)

    def close(self) -> None:
        """End the threads."""
        self._executor.shutdown(wait=False)

    def submit(self, request: InferRequest, done: Done) -> Cancel:
        """Queue a request; an unknown model is answered with `done(error)`."""
        try:
            served = self._table.find(request.model, request.version)
        except OnwardError as error:
            done(error)
            return _nothing
        return served.submit(request, done)

    def signature(self, name: str, version: str = "") -> tuple[list[TensorSpec], list[TensorSpec]]:
        """The inputs and outputs of a model that is ready."""
        served = self._table.find(name, version)
        return list(served.inputs), list(served.outputs)

    async def _load_version(
        self,
        model: Model,
        files: ModelFiles,
        number: int,
        config: Json | None,
        settings: ModelSettings,
    ) -> LoadFailure | None:
        stamp = (await self.blocking(lambda: fingerprint(files, number)), repr(config), settings)
        version = model.versions.setdefault(number, ModelVersion(number))
        if version.state == READY and version.stamp == stamp:
            version.reason = ""
            return None
        before = version.reason
        if version.served is None:
            version.state, version.reason = LOADING, ""
        try:
            if is_ensemble(config):
                named = settings_of_config(config or {})[0].get("labels", {}) | settings.labels
                labels = await self.blocking(lambda: read_labels(named, files.folder))
                opened = OpenedModel([], settings, ENSEMBLE, config, labels)
            else:
                where = _where(model, files)
                opened = await self.blocking(
                    lambda: self._open(files, number, config, settings, where)
                )
            await self.serve(model, number, opened, stamp)
        except Exception as error:
            reason = describe(error)
            version.fail(reason)
            if reason != before:
                _LOG.error("model %r version %d cannot be loaded: %s", model.name, number, reason)
            return LoadFailure(error.with_traceback(None), number)  # frames hold the model's memory
        return None

    def _open(
        self,
        files: ModelFiles,
        number: int,
        config: Json | None,
        settings: ModelSettings,
        where: str,
    ) -> OpenedModel:
        """Open a version if it fits into the memory limit; with a limit, one after the other."""
        limit = self._settings.total_memory_limit
        if limit is None or settings.workers:  # other processes, with limits of their own
            return open_model(files, number, config, settings, self._opener, where)
        with self._memory:
            check_memory(files.name, files.versions[number], limit)
            return open_model(files, number, config, settings, self._opener, where)

    def _make(self, name: str, number: int, opened: OpenedModel) -> Served:
        loop, clock, observer = self._loop, self._clock, self._observer
        if opened.platform == ENSEMBLE:
            graph = read_ensemble(name, opened.config or {})
            return Ensemble(
                graph, str(number), self.submit, self.signature,
                loop=loop, clock=clock, observer=observer,
            )  # fmt: skip
        factory = self._factory
        if factory is None:
            factory = _served_model.ServedModel
        return factory(
            name, str(number), opened.instances, opened.settings,
            loop=loop, clock=clock, observer=observer,
        )  # fmt: skip

    async def _end(self, served: Served) -> None:
        try:
            await served.drain(self._settings.drain_timeout)
            await served.close()
        except Exception:
            _LOG.exception("a model that is no longer served could not be closed")

    def _note(self, name: str, ignored: Iterable[str]) -> None:
        """Log once what a configuration asks for and does not get."""
        fresh = [each for each in ignored if (name, each) not in self._noted]
        self._noted |= {(name, each) for each in fresh}
        if fresh:
            _LOG.warning("model %r: not supported, and ignored: %s", name, ", ".join(fresh))


def _nothing() -> None:
    """The cancellation of a request that is answered already."""


def _where(model: Model, files: ModelFiles) -> str:
    """What messages call the configuration of a model."""
    return OVERRIDE if model.override is not None else f"{files.folder.name}/{CONFIG}"
