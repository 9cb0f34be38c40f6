"""Onward: run and train ONNX models on stock engines.

The public names load when they are first used: importing onward costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.errors import OnwardError as OnwardError
    from onward.gradients.model import gradient as gradient
    from onward.gradients.rule import GradientTable as GradientTable
    from onward.gradients.table import GRADIENTS as GRADIENTS
    from onward.graph.builder import OpBuilder as OpBuilder
    from onward.graph.files import load as load
    from onward.graph.files import save as save
    from onward.graph.weights import swap_weights as swap_weights
    from onward.providers.choose import available

    get_available_providers = available
    from onward.providers.options import ExecutionMode as ExecutionMode
    from onward.providers.options import ExecutionOrder as ExecutionOrder
    from onward.providers.options import GraphOptimizationLevel as GraphOptimizationLevel
    from onward.providers.options import RunOptions as RunOptions
    from onward.providers.options import SessionOptions as SessionOptions
    from onward.providers.ort.values import OrtValue as OrtValue
    from onward.sessions.inference import InferenceSession as InferenceSession
    from onward.sessions.pipeline import Pipeline as Pipeline

__version__ = "0.1.0"

_HOMES = {
    "OnwardError": "onward.errors",
    "GRADIENTS": "onward.gradients.table",
    "GradientTable": "onward.gradients.rule",
    "gradient": "onward.gradients.model",
    "OpBuilder": "onward.graph.builder",
    "load": "onward.graph.files",
    "save": "onward.graph.files",
    "swap_weights": "onward.graph.weights",
    "ExecutionMode": "onward.providers.options",
    "ExecutionOrder": "onward.providers.options",
    "GraphOptimizationLevel": "onward.providers.options",
    "RunOptions": "onward.providers.options",
    "SessionOptions": "onward.providers.options",
    "OrtValue": "onward.providers.ort.values",
    "InferenceSession": "onward.sessions.inference",
    "Pipeline": "onward.sessions.pipeline",
}
_RENAMED = {"get_available_providers": ("onward.providers.choose", "available")}

__all__ = [*_HOMES, *_RENAMED, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        home, attribute = _RENAMED[name]
    elif name in _HOMES:
        home, attribute = _HOMES[name], name
    else:
        raise AttributeError(f"module 'onward' has no attribute {name!r}")
    value = getattr(import_module(home), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
