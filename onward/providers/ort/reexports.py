"""Names of onnxruntime that Onward re-exports, looked up when they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnxruntime

if TYPE_CHECKING:
    from onnxruntime import AdapterFormat as AdapterFormat
    from onnxruntime import LoraAdapter as LoraAdapter
    from onnxruntime import ModelMetadata as ModelMetadata
    from onnxruntime import NodeArg as NodeArg
    from onnxruntime import OrtAllocatorType as OrtAllocatorType
    from onnxruntime import OrtArenaCfg as OrtArenaCfg
    from onnxruntime import OrtDevice as OrtDevice
    from onnxruntime import OrtMemoryInfo as OrtMemoryInfo
    from onnxruntime import OrtMemType as OrtMemType
    from onnxruntime import OrtSparseFormat as OrtSparseFormat
    from onnxruntime import SparseTensor as SparseTensor
    from onnxruntime import create_and_register_allocator as create_and_register_allocator
    from onnxruntime import create_and_register_allocator_v2 as create_and_register_allocator_v2
    from onnxruntime import disable_telemetry_events as disable_telemetry_events
    from onnxruntime import enable_telemetry_events as enable_telemetry_events
    from onnxruntime import get_build_info as get_build_info
    from onnxruntime import get_device as get_device
    from onnxruntime import get_ep_devices as get_ep_devices
    from onnxruntime import get_version_string as get_version_string
    from onnxruntime import has_collective_ops as has_collective_ops
    from onnxruntime import preload_dlls as preload_dlls
    from onnxruntime import print_debug_info as print_debug_info
    from onnxruntime import (
        register_execution_provider_library as register_execution_provider_library,
    )
    from onnxruntime import set_default_logger_severity as set_default_logger_severity
    from onnxruntime import set_default_logger_verbosity as set_default_logger_verbosity
    from onnxruntime import set_global_thread_pool_sizes as set_global_thread_pool_sizes
    from onnxruntime import set_seed as set_seed
    from onnxruntime import (
        unregister_execution_provider_library as unregister_execution_provider_library,
    )
else:

    def __getattr__(name: str) -> Any:
        return getattr(onnxruntime, name)


NativeBinding = onnxruntime.IOBinding
