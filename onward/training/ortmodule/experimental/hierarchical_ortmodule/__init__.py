"""HierarchicalORTModule: the submodules that can be captured run on graphs, the rest in PyTorch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.training.ortmodule.experimental.hierarchical_ortmodule.hierarchical import (
        HierarchicalORTModule as HierarchicalORTModule,
    )

if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> Any:
        if name == "HierarchicalORTModule":
            return getattr(import_module(f"{__name__}.hierarchical"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["HierarchicalORTModule"]
