"""onward.training mirrors onnxruntime.training: artifacts, onnxblock and api.

`import onward.training` loads none of them; each loads when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.training import api as api
    from onward.training import artifacts as artifacts
    from onward.training import onnxblock as onnxblock

_MODULES = ("artifacts", "onnxblock", "api")

if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_MODULES)
