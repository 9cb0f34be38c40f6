"""onward.training.ortmodule has the names of onnxruntime.training.ortmodule.

The names load, and torch with them, when they are first used. Constants may be changed, as in the
peer: `ortmodule.ONNX_OPSET_VERSION = 18`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.training.ortmodule._logger import LogLevel as LogLevel
    from onward.training.ortmodule.graph_optimizer_registry import (
        register_graph_optimizer as register_graph_optimizer,
    )
    from onward.training.ortmodule.options import DebugOptions as DebugOptions
    from onward.training.ortmodule.ortmodule import ORTModule as ORTModule

ONNX_OPSET_VERSION = 17  # of the models that `DebugOptions(save_onnx=True)` writes, if they fit
MINIMUM_RUNTIME_PYTORCH_VERSION_STR = "2.11.0"
ORTMODULE_TORCH_CPP_DIR = __path__[0] + "/torch_cpp_extensions"
ORTMODULE_FALLBACK_RETRY = False
ORTMODULE_ONNX_EXPORT_CONTEXT = [False]
ONNXRUNTIME_CUDA_VERSION = None  # nothing is compiled for a version of CUDA
ONNXRUNTIME_ROCM_VERSION = None
_FALLBACK_INIT_EXCEPTION = None

_NAMES = {
    "DebugOptions": ("onward.training.ortmodule.options", "DebugOptions"),
    "LogLevel": ("onward.training.ortmodule._logger", "LogLevel"),
    "ORTModule": ("onward.training.ortmodule.ortmodule", "ORTModule"),
    "ORTMODULE_FALLBACK_POLICY": ("onward.training.ortmodule._fallback", "DEFAULT_POLICY"),
    "register_graph_optimizer": (
        "onward.training.ortmodule.graph_optimizer_registry",
        "register_graph_optimizer",
    ),
    "set_seed": ("onward.providers.ort.reexports", "set_seed"),
    "_are_deterministic_algorithms_enabled": (
        "onward.pytorch.ortmodule.device_names",
        "are_deterministic_algorithms_enabled",
    ),
    "_use_deterministic_algorithms": (
        "onward.pytorch.ortmodule.device_names",
        "use_deterministic_algorithms",
    ),
    "_defined_from_envvar": ("onward.training.ortmodule.switches", "defined_from_envvar"),
}
_MODULES = (
    "_custom_autograd_function",
    "_custom_gradient_registry",
    "_fallback",
    "_graph_execution_manager",
    "_io",
    "_logger",
    "_utils",
    "experimental",
    "options",
    "torch_cpp_extensions",
)

if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> Any:
        if name in _NAMES:
            module, attribute = _NAMES[name]
            return getattr(import_module(module), attribute)
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    constants = [name for name in globals() if name.isupper()]
    return sorted({*constants, *_NAMES, *_MODULES})
