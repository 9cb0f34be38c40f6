"""Open one version of a model: its instances, settings, processing and labels. Blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onward.errors import OptionError
from onward.graph.scan.file_metadata import metadata_of
from onward.serving.core import Json
from onward.serving.instance import Instance
from onward.serving.models.completed_config import ONNX, PYTHON
from onward.serving.models.config_settings import model_settings, settings_of_config
from onward.serving.models.config_signature import configured
from onward.serving.models.function_instance import FunctionInstance
from onward.serving.models.model_config import normalize
from onward.serving.models.model_folder import CONFIG, ModelFiles
from onward.serving.models.open_instances import open_instances
from onward.serving.models.session_instance import SessionInstance
from onward.serving.processing.processing import add_processing
from onward.serving.settings import ModelSettings, ServingSettings
from onward.sessions.inference import InferenceSession

_LOG = logging.getLogger("onward.serving")
ALL_MODELS = "*"  # in ServingSettings.models: settings of every model

# (path, settings, name, version) -> instances and the settings with every `auto` decided
OpenInstances = Callable[[Path, ModelSettings, str, str], tuple[list[Instance], ModelSettings]]


@dataclass(frozen=True)
class OpenedModel:
    """A version's instances, and what was decided about it."""

    instances: list[Instance]
    settings: ModelSettings
    platform: str
    config: Json | None = None  # as it was written down
    labels: dict[str, list[str]] = field(default_factory=dict)  # by output
    filename: str = ""


def settings_for(
    name: str, config: Json | None, server: ServingSettings, where: str = CONFIG
) -> tuple[ModelSettings, list[str]]:
    """A model's settings, and the fields of its configuration that are ignored.

    config.pbtxt is the weakest, then the server's settings of all models, then of this one.
    """
    found, ignored = settings_of_config(config, where) if config is not None else ({}, [])
    own = server.models
    return model_settings(found, own.get(ALL_MODELS, {}), own.get(name, {})), ignored


def normal_config(files: ModelFiles, override: Json | None) -> Json | None:
    """The configuration of a model: a client's, or that of config.pbtxt."""
    if override is not None or files.config is None:
        return override
    config = normalize(files.config, f"{files.folder.name}/{CONFIG}")
    given = config.get("name", "") or files.name
    if given != files.name:
        raise OptionError(f"{files.folder.name}/{CONFIG} names {given!r}: rename the folder to it")
    return config


def open_model(
    files: ModelFiles,
    number: int,
    config: Json | None,
    settings: ModelSettings,
    opener: OpenInstances = open_instances,
    where: str = CONFIG,
) -> OpenedModel:
    """Open a version's file with the settings that it has; `where` names the configuration."""
    path = files.versions[number]
    instances, settings = opener(path, settings, files.name, str(number))
    try:
        metadata = _metadata(instances[0], path)
        masks = {each.mask for each in settings.padding.values() if each.mask}
        found = configured(instances, config, where, masks) if config is not None else instances
        found, stored = add_processing(found, settings, files.folder, metadata)
        labels = stored | read_labels(settings.labels, files.folder)
    except BaseException:
        for instance in instances:
            instance.close()
        raise
    return OpenedModel(found, settings, ONNX, config, labels, path.name)


def open_source(source: Any, settings: ModelSettings) -> OpenedModel:
    """Serve a session or function that the user holds; it stays theirs to close."""
    count = settings.instances if isinstance(settings.instances, int) else 1
    if isinstance(source, InferenceSession):
        # it may have a Loop that runs for hours, which must not stop the event loop
        sessions = [SessionInstance(source, owned=False, has_loop=True) for _ in range(count)]
        found, stored = add_processing([*sessions], settings, Path.cwd(), sessions[0].metadata)
        labels = stored | read_labels(settings.labels, Path.cwd())
        return OpenedModel(found, settings, ONNX, None, labels)
    first = source if isinstance(source, FunctionInstance) else FunctionInstance(source)
    functions: list[Instance] = [first]
    functions += [
        FunctionInstance(first.function, first.inputs, first.outputs) for _ in range(count - 1)
    ]
    return OpenedModel(functions, settings, PYTHON, None, read_labels(settings.labels, Path.cwd()))


def _metadata(instance: Instance, path: Path) -> Mapping[str, str]:
    """The model's metadata; read from its file where the instance is in another process."""
    if isinstance(instance, SessionInstance):
        return instance.metadata
    return metadata_of(path.read_bytes()) if path.suffix == ".onnx" else {}


def read_labels(files: Mapping[str, str], folder: Path) -> dict[str, list[str]]:
    """The labels of outputs from files with one label a line."""
    found = {}
    for output, name in files.items():
        path = folder / name
        try:
            found[output] = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"the labels of output {output!r} cannot be read: {error}") from error
    return found
