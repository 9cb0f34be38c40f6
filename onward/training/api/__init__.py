"""onward.training.api: training on a device, under the names of onnxruntime.training.api.

    from onward.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer

Training needs only numpy and onnxruntime. The names load when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.training.api.checkpoint_state import CheckpointState as CheckpointState
    from onward.training.api.checkpoint_state import Parameter as Parameter
    from onward.training.api.checkpoint_state import Parameters as Parameters
    from onward.training.api.checkpoint_state import Properties as Properties
    from onward.training.api.lr_scheduler import LinearLRScheduler as LinearLRScheduler
    from onward.training.api.lr_scheduler import Scheduler as Scheduler
    from onward.training.api.module import Module as Module
    from onward.training.api.optimizer import Optimizer as Optimizer

_HOMES = {
    "CheckpointState": "checkpoint_state",
    "Parameter": "checkpoint_state",
    "Parameters": "checkpoint_state",
    "Properties": "checkpoint_state",
    "LinearLRScheduler": "lr_scheduler",
    "Scheduler": "lr_scheduler",
    "Module": "module",
    "Optimizer": "optimizer",
}

__all__ = [*_HOMES]

if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
            globals()[name] = value
            return value
        if name in _HOMES.values():
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
