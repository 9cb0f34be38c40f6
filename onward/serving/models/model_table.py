"""The models of a server with the states of their versions, as requests and the index see them."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from onward.errors import ModelNotFound, ModelUnavailable
from onward.serving.core import Json
from onward.serving.models.ensemble import Ensemble
from onward.serving.models.model_folder import ModelFiles
from onward.serving.models.open_model import OpenedModel
from onward.serving.models.served import Served
from onward.serving.settings import ModelSettings

_MOST_DIGITS = 20  # of a version: 64 bits
READY, UNAVAILABLE, LOADING, UNLOADING = "READY", "UNAVAILABLE", "LOADING", "UNLOADING"


@dataclass
class ModelVersion:
    """One version: what serves it, and its state with the reason."""

    number: int
    state: str = LOADING
    reason: str = ""
    served: Served | None = None
    opened: OpenedModel | None = None
    stamp: Hashable = None  # of its files and configuration when it was opened

    def fail(self, reason: str) -> None:
        """A version that serves keeps serving when its successor is broken."""
        self.reason = reason
        if self.served is None:
            self.state = UNAVAILABLE


@dataclass
class Model:
    """One name: its versions, and what a client gave to load it."""

    name: str
    versions: dict[int, ModelVersion] = field(default_factory=dict)
    problem: str = ""  # why it has no versions, or keeps those that it had
    override: Json | None = None  # a configuration that replaces config.pbtxt
    uploads: TemporaryDirectory[str] | None = None  # files that replace those of the folder
    path: Path | None = None  # a file that was added under this name
    settings: ModelSettings | None = None  # of that file
    files: ModelFiles | None = None  # when it was loaded last
    is_unloaded: bool = False  # by a client, until a client loads it again
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one load or unload at a time
    control: asyncio.Lock = field(default_factory=asyncio.Lock)  # one client's load at a time


class ModelTable:
    """All models by name."""

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}
        self._latest: dict[str, Served] = {}

    def find(self, name: str, version: str = "") -> Served:
        """What serves a request; ModelNotFound and ModelUnavailable with Triton's texts."""
        if not version:
            found = self._latest.get(name)
            if found is not None:
                return found
        served = self.version(name, version).served
        assert served is not None
        return served

    def version(self, name: str, version: str = "") -> ModelVersion:
        """The version that is ready; the highest one if none is named."""
        unknown = f"Request for unknown model: {name!r}"
        model = self.models.get(name)
        if model is None:
            raise ModelNotFound(f"{unknown} is not found")
        if not version:
            ready = [each for each in model.versions.values() if _is_ready(each)]
            if ready:
                return max(ready, key=lambda each: each.number)
            if any(each.state == LOADING for each in model.versions.values()):
                raise ModelUnavailable(f"{unknown} is being loaded", retry_after=1.0)
            raise ModelNotFound(f"{unknown} has no available versions")
        numeric = version.isascii() and version.isdigit() and len(version) <= _MOST_DIGITS
        found = model.versions.get(int(version)) if numeric else None
        if found is None:
            raise ModelNotFound(f"{unknown} version {version} is not found")
        if not _is_ready(found):
            raise ModelUnavailable(f"{unknown} version {version} is not at ready state")
        return found

    def state(self, version: ModelVersion) -> tuple[str, str]:
        """The state and its reason; an ensemble is ready when its parts are."""
        if version.state == READY and isinstance(version.served, Ensemble):
            problem = version.served.find_problem()
            if problem:
                return UNAVAILABLE, problem
        if version.state == READY and version.served is not None and version.served.is_stuck:
            return UNAVAILABLE, "stuck: the runs of all of its instances do not end"
        return version.state, version.reason

    def index(self, only_ready: bool = False) -> list[Json]:
        """Rows of the repository's index, by name and version."""
        rows: list[Json] = []
        for name in sorted(self.models):
            model = self.models[name]
            for number in sorted(model.versions):
                state, reason = self.state(model.versions[number])
                if state == READY and not reason:
                    reason = model.problem
                row: Json = {"name": name, "version": str(number), "state": state}
                rows.append(row | ({"reason": reason} if reason else {}))
            if not model.versions:
                reason = model.problem or "unloaded"
                rows.append({"name": name, "version": "", "state": UNAVAILABLE, "reason": reason})
        return [row for row in rows if not only_ready or row["state"] == READY]

    def ready_versions(self, name: str) -> list[str]:
        """The numbers of the versions that are ready."""
        model = self.models.get(name)
        versions = sorted(model.versions.items()) if model is not None else []
        return [str(number) for number, each in versions if _is_ready(each)]

    def served(self) -> Iterator[tuple[Model, ModelVersion, Served]]:
        """Everything that can take requests."""
        for model in self.models.values():
            for version in model.versions.values():
                if version.served is not None:
                    yield model, version, version.served

    def refresh(self, name: str) -> None:
        """Route requests without a version to the highest one that is ready."""
        model = self.models.get(name)
        ready = [] if model is None else [v for v in model.versions.values() if _is_ready(v)]
        if not ready:
            self._latest.pop(name, None)
            return
        served = max(ready, key=lambda each: each.number).served
        assert served is not None
        self._latest[name] = served


def _is_ready(version: ModelVersion) -> bool:
    return version.served is not None and version.state == READY


def describe(error: BaseException) -> str:
    """An error as one line of the index; the bytes of a path that are not UTF-8 as \\xff."""
    text = str(error).strip() or type(error).__name__
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())
