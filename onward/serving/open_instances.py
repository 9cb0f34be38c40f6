"""Open the instances of a model as its settings say: in this process, or in worker processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onward.lazy import LazyModule
from onward.serving.instance import Instance
from onward.serving.session_instance import open_session_instances
from onward.serving.settings import ModelSettings

choose_instances: Any = LazyModule("onward.serving.choose_instances")
worker_instance: Any = LazyModule("onward.serving.worker_instance")


def open_instances(
    path: Path, settings: ModelSettings, name: str, version: str
) -> tuple[list[Instance], ModelSettings]:
    """The instances of a model's file, and the settings with every `auto` decided.

    Blocks while engines open the model: call it in a thread.
    """
    if settings.instances == "auto" or settings.providers == "auto":
        settings = choose_instances.choose_instances(path, settings)
    if settings.workers:
        return _open_workers(path, settings, name, version), settings
    count = settings.instances if isinstance(settings.instances, int) else 1
    return [*open_session_instances(path, settings, count)], settings


def _open_workers(path: Path, settings: ModelSettings, name: str, version: str) -> list[Instance]:
    opened: list[Instance] = []
    try:
        for _ in range(settings.workers):
            opened.append(worker_instance.open_worker_instance(path, settings, name, version))
    except BaseException:
        for instance in opened:
            instance.close()
        raise
    return opened
