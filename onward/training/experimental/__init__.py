"""onnxruntime.training.experimental's names, and the configuration from a JSON file.

The names load, and torch with them, when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.pytorch.gradient_export import export_gradient_graph as export_gradient_graph
    from onward.training.experimental import json_config as json_config

_GRADIENT_EXPORT = "onward.pytorch.gradient_export"
__all__ = ["export_gradient_graph", "json_config"]

if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> Any:
        if name == "json_config":
            return import_module(f"{__name__}.json_config")
        if name == "export_gradient_graph":
            return getattr(import_module(_GRADIENT_EXPORT), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
