"""The PyTorch front: modules, optimizers and tools for training loops written in PyTorch.

Names are imported when first used, so that importing this is fast.

from onward.pytorch import Module, explain
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.pytorch.explanation.explain_module import explain as explain
    from onward.pytorch.explanation.module_explanation import Explanation as Explanation
    from onward.pytorch.fallback import FallbackWarning as FallbackWarning
    from onward.pytorch.module import Module as Module
    from onward.pytorch.module_options import ModuleOptions as ModuleOptions
    from onward.pytorch.onnx_export import export as export
    from onward.pytorch.torch_session import write_to_module as write_to_module
    from onward.pytorch.torch_session import write_to_optimizer as write_to_optimizer
    from onward.pytorch.trainer.arguments import TrainingArguments as TrainingArguments
    from onward.pytorch.trainer.trainer import Trainer as Trainer

_MODULE_OF = {
    "Explanation": "onward.pytorch.explanation.module_explanation",
    "FallbackWarning": "onward.pytorch.fallback",
    "Module": "onward.pytorch.module",
    "ModuleOptions": "onward.pytorch.module_options",
    "Trainer": "onward.pytorch.trainer.trainer",
    "TrainingArguments": "onward.pytorch.trainer.arguments",
    "explain": "onward.pytorch.explanation.explain_module",
    "export": "onward.pytorch.onnx_export",
    "write_to_module": "onward.pytorch.torch_session",
    "write_to_optimizer": "onward.pytorch.torch_session",
}

__all__ = [*_MODULE_OF]

if not TYPE_CHECKING:  # for a type checker, every name would exist

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(
                f"module 'onward.pytorch' has no attribute {name!r}\n"
                f"its names are: {', '.join(__all__)}"
            )
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
