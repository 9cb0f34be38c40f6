"""onward.training mirrors onnxruntime.training: artifacts, api, ortmodule, optim and more.

`import onward.training` loads none of them; each loads when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.training import api as api
    from onward.training import artifacts as artifacts
    from onward.training import experimental as experimental
    from onward.training import onnxblock as onnxblock
    from onward.training import optim as optim
    from onward.training import ortmodule as ortmodule
    from onward.training import utils as utils
    from onward.training.ortmodule import ORTModule as ORTModule

_MODULES = ("artifacts", "onnxblock", "api", "ortmodule", "optim", "utils", "experimental")

if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name == "ORTModule":
            return import_module(f"{__name__}.ortmodule").ORTModule
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_MODULES, "ORTModule"])
