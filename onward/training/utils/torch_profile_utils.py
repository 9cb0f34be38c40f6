"""onnxruntime.training.utils.torch_profile_utils' names."""

from onward.pytorch.profiler_ranges import (
    get_runtime_pytorch_version,
    log_memory_usage,
    nvtx_function_decorator,
    torch_nvtx_range_pop,
    torch_nvtx_range_push,
)

__all__ = [
    "get_runtime_pytorch_version",
    "log_memory_usage",
    "nvtx_function_decorator",
    "torch_nvtx_range_pop",
    "torch_nvtx_range_push",
]
