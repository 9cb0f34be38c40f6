"""Onward: run and train ONNX models on stock engines.

The public names load when they are first used: importing onward costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward import losses as losses
    from onward import optimizers as optimizers
    from onward import training as training
    from onward.errors import OnwardError as OnwardError
    from onward.gradients.model import gradient as gradient
    from onward.gradients.rule import GradientTable as GradientTable
    from onward.gradients.table import GRADIENTS as GRADIENTS
    from onward.graph.builder import OpBuilder as OpBuilder
    from onward.graph.files import load as load
    from onward.graph.files import save as save
    from onward.graph.limits import ModelLimits as ModelLimits
    from onward.graph.weights import swap_weights as swap_weights
    from onward.profile.report import Profile as Profile
    from onward.profile.report import profile_model as profile_model
    from onward.providers.choose import available

    get_available_providers = available
    from onward.providers.options import ExecutionMode as ExecutionMode
    from onward.providers.options import ExecutionOrder as ExecutionOrder
    from onward.providers.options import GraphOptimizationLevel as GraphOptimizationLevel
    from onward.providers.options import RunOptions as RunOptions
    from onward.providers.options import SessionOptions as SessionOptions
    from onward.providers.ort.shared import SharedMemory as SharedMemory
    from onward.providers.ort.values import OrtValue as OrtValue
    from onward.sessions.checkpoint.folder import Checkpoints as Checkpoints
    from onward.sessions.inference import InferenceSession as InferenceSession
    from onward.sessions.memory.plans import MeasuredMemory as MeasuredMemory
    from onward.sessions.memory.plans import MemoryPlan as MemoryPlan
    from onward.sessions.memory.plans import measure_memory as measure_memory
    from onward.sessions.memory.plans import plan_memory as plan_memory
    from onward.sessions.pipeline import Pipeline as Pipeline
    from onward.sessions.training.compile import compile_training as compile_training
    from onward.sessions.training.options import TrainingOptions as TrainingOptions
    from onward.sessions.training.program import TrainingProgram as TrainingProgram
    from onward.sessions.training.session import TrainingSession as TrainingSession

__version__ = "0.1.0"

_HOMES = {
    "OnwardError": "onward.errors",
    "GRADIENTS": "onward.gradients.table",
    "GradientTable": "onward.gradients.rule",
    "gradient": "onward.gradients.model",
    "OpBuilder": "onward.graph.builder",
    "load": "onward.graph.files",
    "save": "onward.graph.files",
    "ModelLimits": "onward.graph.limits",
    "swap_weights": "onward.graph.weights",
    "Profile": "onward.profile.report",
    "profile_model": "onward.profile.report",
    "ExecutionMode": "onward.providers.options",
    "ExecutionOrder": "onward.providers.options",
    "GraphOptimizationLevel": "onward.providers.options",
    "RunOptions": "onward.providers.options",
    "SessionOptions": "onward.providers.options",
    "SharedMemory": "onward.providers.ort.shared",
    "OrtValue": "onward.providers.ort.values",
    "Checkpoints": "onward.sessions.checkpoint.folder",
    "InferenceSession": "onward.sessions.inference",
    "MeasuredMemory": "onward.sessions.memory.plans",
    "MemoryPlan": "onward.sessions.memory.plans",
    "measure_memory": "onward.sessions.memory.plans",
    "plan_memory": "onward.sessions.memory.plans",
    "Pipeline": "onward.sessions.pipeline",
    "compile_training": "onward.sessions.training.compile",
    "TrainingOptions": "onward.sessions.training.options",
    "TrainingProgram": "onward.sessions.training.program",
    "TrainingSession": "onward.sessions.training.session",
}
_MODULES = ("losses", "optimizers", "training")
_RENAMED = {"get_available_providers": ("onward.providers.choose", "available")}

__all__ = [*_HOMES, *_RENAMED, *_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"onward.{name}")
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
