"""Optimizers for PyTorch: onnxruntime.training.optim's names.

The names load, and torch with them, when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.pytorch.optim.fp16_optimizer import FP16_Optimizer as FP16_Optimizer
    from onward.pytorch.optim.fused_adam import AdamWMode as AdamWMode
    from onward.pytorch.optim.fused_adam import FusedAdam as FusedAdam

_MODULE_OF = {
    "AdamWMode": "fused_adam",
    "FusedAdam": "fused_adam",
    "FP16_Optimizer": "fp16_optimizer",
}
__all__ = [*_MODULE_OF]

if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> Any:
        if name in _MODULE_OF:
            return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
