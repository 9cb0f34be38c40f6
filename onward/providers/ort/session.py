"""Stock onnxruntime sessions from our options. Needs onnxruntime and numpy alone."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from onward.errors import (
    MemoryLimitExceeded,
    NodeFailed,
    OnwardError,
    OptionError,
    ProviderError,
)
from onward.providers.options import RunOptions, SessionOptions

ProviderList = Sequence[tuple[str, Mapping[str, Any]]]  # (name, options), the preferred one first

_SCALARS = (
    "intra_op_num_threads",
    "inter_op_num_threads",
    "use_per_session_threads",
    "optimized_model_filepath",
    "use_deterministic_compute",
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "log_severity_level",
    "log_verbosity_level",
    "logid",
    "enable_profiling",
    "profile_file_prefix",
)
_ENUMS = {
    "graph_optimization_level": onnxruntime.GraphOptimizationLevel,
    "execution_mode": onnxruntime.ExecutionMode,
    "execution_order": onnxruntime.ExecutionOrder,
}
_FAILED_NODE = re.compile(r"while running (\w+) node")
_registering = threading.Lock()


def available() -> list[str]:
    """The execution providers of the onnxruntime that is installed here."""
    return [
        name for name in onnxruntime.get_available_providers() if name != "AzureExecutionProvider"
    ]


def known() -> list[str]:
    """Every execution provider that onnxruntime has a name for, here or elsewhere."""
    return list(onnxruntime.get_all_providers())


def create(
    model: bytes | str,
    options: SessionOptions,
    providers: ProviderList,
    weights: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Any:
    """An onnxruntime.InferenceSession; `weights` are the tensors that the bytes call external."""
    native = native_options(options)
    names = [name for name, _ in providers]
    details = [dict(given) for _, given in providers]
    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        native.add_external_initializers(list(weights), values)
    if options.memory_limit is None:
        return onnxruntime.InferenceSession(model, native, names, details, enable_fallback=0)
    with _registering:  # the limited arena is the process's until the session has taken it
        _limit_memory(native, options.memory_limit)
        for name, given in zip(names, details, strict=True):
            if name in ("CUDAExecutionProvider", "TensorrtExecutionProvider"):
                key = "gpu_mem_limit" if name.startswith("CUDA") else "trt_max_workspace_size"
                given.setdefault(key, str(options.memory_limit))
        return onnxruntime.InferenceSession(model, native, names, details, enable_fallback=0)


def _limit_memory(native: Any, limit: int) -> None:
    """Allocations of the next session come from an arena that ends at `limit` bytes."""
    if limit <= 0:
        raise OptionError(f"memory_limit is a number of bytes above 0, not {limit}")
    info = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(info, onnxruntime.OrtArenaCfg(limit, -1, -1, -1))
    native.add_session_config_entry("session.use_env_allocators", "1")


def native_options(options: SessionOptions) -> Any:
    """Our options as onnxruntime's; its own, where the user gave them, as they are."""
    if options.native is not None:
        return options.native
    native = onnxruntime.SessionOptions()
    for name in _SCALARS:
        setattr(native, name, getattr(options, name))
    for name, kind in _ENUMS.items():
        setattr(native, name, kind(int(getattr(options, name))))
    for name, size in options.free_dimensions.items():
        native.add_free_dimension_override_by_name(name, size)
    for denotation, size in options.free_dimension_denotations.items():
        native.add_free_dimension_override_by_denotation(denotation, size)
    for key, entry in options.config_entries.items():
        if key != "session.disable_cpu_ep_fallback":  # we check that ourselves, node by node
            native.add_session_config_entry(key, entry)
    for name, value in options.initializers.items():
        native.add_initializer(name, value)
    for library in options.custom_op_libraries:
        native.register_custom_ops_library(library)
    return native


def native_run_options(options: Any) -> Any:
    """Our run options as onnxruntime's; they go on following `terminate`."""
    if not isinstance(options, RunOptions):
        return options
    native = onnxruntime.RunOptions()
    native.log_severity_level = options.log_severity_level
    native.log_verbosity_level = options.log_verbosity_level
    native.logid = options.logid
    native.only_execute_path_to_fetches = options.only_execute_path_to_fetches
    for key, entry in options.run_config_entries.items():
        native.add_run_config_entry(key, entry)
    return options.followed_by(native)


def explain(error: Exception, memory_limit: int | None) -> OnwardError:
    """The typed error behind one of onnxruntime's."""
    text = str(error)
    if memory_limit is not None and "Available memory of" in text:
        return MemoryLimitExceeded(
            f"the run needs more than its memory limit of {memory_limit:,} bytes\n"
            "raise SessionOptions.memory_limit, or feed smaller batches"
        )
    node = _FAILED_NODE.search(text)
    if node is not None:
        return NodeFailed(f"onnxruntime failed: {text}", node[1])
    return ProviderError(f"onnxruntime failed: {text}")
