"""Onward: run and train ONNX models on stock engines.

Public names are imported when first used, so that `import onward` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward import compat as compat
    from onward import compress as compress
    from onward import errors as errors
    from onward import losses as losses
    from onward import optimizers as optimizers
    from onward import pytorch as pytorch
    from onward import testing as testing
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
    from onward.measure.profile.report import Profile as Profile
    from onward.measure.profile.report import profile_model as profile_model
    from onward.providers.choose import all_provider_names, available

    get_available_providers, get_all_providers = available, all_provider_names
    from onward.checkpoints.folder import Checkpoints as Checkpoints
    from onward.measure.memory.memory_plan import MeasuredMemory as MeasuredMemory
    from onward.measure.memory.memory_plan import MemoryPlan as MemoryPlan
    from onward.measure.memory.memory_plan import measure_memory as measure_memory
    from onward.measure.memory.memory_plan import plan_memory as plan_memory
    from onward.programs.memory.memory_options import Memory as Memory
    from onward.programs.memory.memory_report import MemoryReport as MemoryReport
    from onward.programs.memory.memory_report import memory_report as memory_report
    from onward.programs.precision.precision import Precision as Precision
    from onward.programs.sparsity.sparsity_options import Sparsity as Sparsity
    from onward.programs.training_options import TrainingOptions as TrainingOptions
    from onward.providers.options import ExecutionMode as ExecutionMode
    from onward.providers.options import ExecutionOrder as ExecutionOrder
    from onward.providers.options import GraphOptimizationLevel as GraphOptimizationLevel
    from onward.providers.options import RunOptions as RunOptions
    from onward.providers.options import SessionOptions as SessionOptions
    from onward.providers.ort.ort_values import OrtValue as OrtValue
    from onward.providers.ort.reexports import AdapterFormat as AdapterFormat
    from onward.providers.ort.reexports import LoraAdapter as LoraAdapter
    from onward.providers.ort.reexports import ModelMetadata as ModelMetadata
    from onward.providers.ort.reexports import NodeArg as NodeArg
    from onward.providers.ort.reexports import OrtAllocatorType as OrtAllocatorType
    from onward.providers.ort.reexports import OrtArenaCfg as OrtArenaCfg
    from onward.providers.ort.reexports import OrtDevice as OrtDevice
    from onward.providers.ort.reexports import OrtMemoryInfo as OrtMemoryInfo
    from onward.providers.ort.reexports import OrtMemType as OrtMemType
    from onward.providers.ort.reexports import OrtSparseFormat as OrtSparseFormat
    from onward.providers.ort.reexports import SparseTensor as SparseTensor
    from onward.providers.ort.reexports import (
        create_and_register_allocator as create_and_register_allocator,
    )
    from onward.providers.ort.reexports import (
        create_and_register_allocator_v2 as create_and_register_allocator_v2,
    )
    from onward.providers.ort.reexports import disable_telemetry_events as disable_telemetry_events
    from onward.providers.ort.reexports import enable_telemetry_events as enable_telemetry_events
    from onward.providers.ort.reexports import get_build_info as get_build_info
    from onward.providers.ort.reexports import get_device as get_device
    from onward.providers.ort.reexports import get_ep_devices as get_ep_devices
    from onward.providers.ort.reexports import get_version_string as get_version_string
    from onward.providers.ort.reexports import has_collective_ops as has_collective_ops
    from onward.providers.ort.reexports import preload_dlls as preload_dlls
    from onward.providers.ort.reexports import print_debug_info as print_debug_info
    from onward.providers.ort.reexports import (
        register_execution_provider_library as register_execution_provider_library,
    )
    from onward.providers.ort.reexports import (
        set_default_logger_severity as set_default_logger_severity,
    )
    from onward.providers.ort.reexports import (
        set_default_logger_verbosity as set_default_logger_verbosity,
    )
    from onward.providers.ort.reexports import (
        set_global_thread_pool_sizes as set_global_thread_pool_sizes,
    )
    from onward.providers.ort.reexports import set_seed as set_seed
    from onward.providers.ort.reexports import (
        unregister_execution_provider_library as unregister_execution_provider_library,
    )
    from onward.providers.ort.shared_memory import SharedMemory as SharedMemory
    from onward.pytorch.module import Module as Module
    from onward.pytorch.module_options import ModuleOptions as ModuleOptions
    from onward.runner.architectures.new_model import new_model as new_model
    from onward.runner.sweep.run_sweep import sweep as sweep
    from onward.runner.train import train as train
    from onward.serving.client.async_client import AsyncClient as AsyncClient
    from onward.serving.client.sync_client import Client as Client
    from onward.serving.serve import Server as Server
    from onward.serving.serve import serve as serve
    from onward.sessions.inference import InferenceSession as InferenceSession
    from onward.sessions.io_binding import IOBinding as IOBinding
    from onward.sessions.pipeline import Pipeline as Pipeline
    from onward.sessions.training.session import TrainingSession as TrainingSession
    from onward.sessions.training.training_program import TrainingProgram as TrainingProgram
    from onward.sessions.training.training_program import compile_training as compile_training

__version__ = "0.1.0"

_MODULE_OF = {
    "OnwardError": "onward.errors",
    "GRADIENTS": "onward.gradients.table",
    "GradientTable": "onward.gradients.rule",
    "gradient": "onward.gradients.model",
    "OpBuilder": "onward.graph.builder",
    "load": "onward.graph.files",
    "save": "onward.graph.files",
    "ModelLimits": "onward.graph.limits",
    "swap_weights": "onward.graph.weights",
    "Profile": "onward.measure.profile.report",
    "profile_model": "onward.measure.profile.report",
    "ExecutionMode": "onward.providers.options",
    "ExecutionOrder": "onward.providers.options",
    "GraphOptimizationLevel": "onward.providers.options",
    "RunOptions": "onward.providers.options",
    "SessionOptions": "onward.providers.options",
    "SharedMemory": "onward.providers.ort.shared_memory",
    "OrtValue": "onward.providers.ort.ort_values",
    "IOBinding": "onward.sessions.io_binding",
    "Checkpoints": "onward.checkpoints.folder",
    "InferenceSession": "onward.sessions.inference",
    "MeasuredMemory": "onward.measure.memory.memory_plan",
    "MemoryPlan": "onward.measure.memory.memory_plan",
    "measure_memory": "onward.measure.memory.memory_plan",
    "plan_memory": "onward.measure.memory.memory_plan",
    "Pipeline": "onward.sessions.pipeline",
    "Module": "onward.pytorch.module",
    "ModuleOptions": "onward.pytorch.module_options",
    "new_model": "onward.runner.architectures.new_model",
    "train": "onward.runner.train",
    "sweep": "onward.runner.sweep.run_sweep",
    "AsyncClient": "onward.serving.client.async_client",
    "Client": "onward.serving.client.sync_client",
    "Server": "onward.serving.serve",
    "serve": "onward.serving.serve",
    "compile_training": "onward.sessions.training.training_program",
    "Precision": "onward.programs.precision.precision",
    "TrainingOptions": "onward.programs.training_options",
    "Memory": "onward.programs.memory.memory_options",
    "MemoryReport": "onward.programs.memory.memory_report",
    "memory_report": "onward.programs.memory.memory_report",
    "Sparsity": "onward.programs.sparsity.sparsity_options",
    "TrainingProgram": "onward.sessions.training.training_program",
    "TrainingSession": "onward.sessions.training.session",
}
_MODULES = (
    "compat",
    "compress",
    "errors",
    "losses",
    "optimizers",
    "pytorch",
    "testing",
    "training",
)
_RENAMED = {
    "get_available_providers": ("onward.providers.choose", "available"),
    "get_all_providers": ("onward.providers.choose", "all_provider_names"),
}
_REEXPORTED = (  # onnxruntime's own, unchanged
    "AdapterFormat",
    "LoraAdapter",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtDevice",
    "OrtMemoryInfo",
    "OrtMemType",
    "OrtSparseFormat",
    "SparseTensor",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_version_string",
    "has_collective_ops",
    "preload_dlls",
    "print_debug_info",
    "register_execution_provider_library",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "unregister_execution_provider_library",
)
_ABSENT = {  # onnxruntime's names that are not here: what to do instead
    "ModelCompiler": "compile with onnxruntime itself: `from onnxruntime import ModelCompiler`",
    "capi": "use onnxruntime's own: `from onnxruntime import capi`",
    "quantization": "quantize with `onward.compress.quantize`",
    "tools": "use onnxruntime's own: `import onnxruntime.tools`",
    "transformers": "use onnxruntime's own: `import onnxruntime.transformers`",
    "copy_tensors": "copy through numpy: `OrtValue.ortvalue_from_numpy(value.numpy())`",
    "OrtCompileApiFlags": "it belongs to onnxruntime's ModelCompiler",
    "OrtExecutionProviderDevicePolicy": 'measure the fastest: `providers="auto"`',
}

__all__ = [*_MODULE_OF, *_RENAMED, *_REEXPORTED, *_MODULES, "__version__"]

if not TYPE_CHECKING:  # for a type checker, every name would exist

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"onward.{name}")
        if name in _RENAMED:
            module, attribute = _RENAMED[name]
        elif name in _MODULE_OF:
            module, attribute = _MODULE_OF[name], name
        elif name in _REEXPORTED:
            module, attribute = "onward.providers.ort.reexports", name
        else:
            raise AttributeError(_missing_message(name))
        value = getattr(import_module(module), attribute)
        globals()[name] = value
        return value


def _missing_message(name: str) -> str:
    """The error for an unknown name, with a hint."""
    hint = _ABSENT.get(name)
    if hint is None:
        hint = import_module("onward.message_text").suggest_names(name, __all__, "such as")
    return f"module 'onward' has no attribute {name!r}\n{hint}"


def __dir__() -> list[str]:
    return sorted(__all__)
