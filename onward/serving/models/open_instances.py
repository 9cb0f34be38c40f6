"""Open the instances of a model as its settings say: in this process, or in worker processes."""

from __future__ import annotations

from pathlib import Path

from onward.serving.instance import Instance
from onward.serving.models.session_instance import open_session_instances
from onward.serving.settings import ModelSettings
from onward.serving.worker_processes.choose_instances import choose_instances
from onward.serving.worker_processes.worker_instance import open_worker_instances


def open_instances(
    path: Path, settings: ModelSettings, name: str, version: str
) -> tuple[list[Instance], ModelSettings]:
    """The instances of a model's file, and the settings with every `auto` decided.

    Blocks while engines open the model: call it in a thread.
    """
    if settings.instances == "auto" or settings.providers == "auto":
        settings = choose_instances(path, settings)
    if settings.workers:
        return [*open_worker_instances(path, settings, name, version)], settings
    count = settings.instances if isinstance(settings.instances, int) else 1
    return [*open_session_instances(path, settings, count)], settings
