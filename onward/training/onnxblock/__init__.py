"""Blocks that build models to train with: onnxruntime.training.onnxblock's names.

>>> from onward.training import onnxblock
>>> class Training(onnxblock.TrainingBlock):
...     def __init__(self):
...         super().__init__()
...         self.loss = onnxblock.loss.CrossEntropyLoss()
...     def build(self, output_name):
...         return self.loss(output_name), output_name

The names load when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.training.onnxblock import blocks as blocks
    from onward.training.onnxblock import loss as loss
    from onward.training.onnxblock import optim as optim
    from onward.training.onnxblock.blocks import Block as Block
    from onward.training.onnxblock.checkpoint_utils import (
        load_checkpoint_to_model as load_checkpoint_to_model,
    )
    from onward.training.onnxblock.checkpoint_utils import save_checkpoint as save_checkpoint
    from onward.training.onnxblock.model_accessor import base as base
    from onward.training.onnxblock.model_accessor import custom_op_library as custom_op_library
    from onward.training.onnxblock.model_accessor import empty_base as empty_base
    from onward.training.onnxblock.onnxblock import ForwardBlock as ForwardBlock
    from onward.training.onnxblock.onnxblock import TrainingBlock as TrainingBlock

_MODULES = ("blocks", "loss", "optim", "model_accessor", "checkpoint_utils")
_HOMES = {
    "Block": "blocks",
    "ForwardBlock": "onnxblock",
    "TrainingBlock": "onnxblock",
    "base": "model_accessor",
    "empty_base": "model_accessor",
    "custom_op_library": "model_accessor",
    "save_checkpoint": "checkpoint_utils",
    "load_checkpoint_to_model": "checkpoint_utils",
}
__all__ = [*_HOMES, "blocks", "loss", "optim"]

if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name in _HOMES:
            return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
