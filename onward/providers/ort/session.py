"""Create sessions of stock onnxruntime from SessionOptions. Needs onnxruntime and numpy only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
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
from onward.graph.scan.model_scan import ModelScan, scan_model
from onward.providers.options import GraphOptimizationLevel, RunOptions, SessionOptions
from onward.providers.ort import folding_limit
from onward.providers.ort.shared_memory import check_limit, limited_arena
from onward.providers.ort.shared_threads import are_threads_shared
from onward.providers.ort.trace_files import removing_trace_on_error

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
_NO_MEMORY = (
    "Failed to allocate memory",
    "bad_alloc",
    "bad allocation",
)  # another provider would fail, too
_LIMITS = {  # the option for a memory limit
    "CUDAExecutionProvider": "gpu_mem_limit",
    "TensorrtExecutionProvider": "trt_max_workspace_size",
}


def available() -> list[str]:
    """The execution providers of the onnxruntime that is installed here."""
    return [
        name for name in onnxruntime.get_available_providers() if name != "AzureExecutionProvider"
    ]


def known() -> list[str]:
    """Every execution provider that onnxruntime knows, available on this machine or not."""
    return list(onnxruntime.get_all_providers())


def create(
    model: bytes | str,
    options: SessionOptions,
    providers: ProviderList,
    weights: Mapping[str, np.ndarray[Any, Any]] | None = None,
    scan: ModelScan | None = None,
) -> Any:
    """An onnxruntime.InferenceSession; `weights` are the tensors that the model stores outside.

    `scan` is that of these bytes, if there is one already; a model that onnxruntime reads from its
    path is optimised without limits if there is none.
    """
    native = native_options(options)
    left_out = [*_bound_folding(model, native, options, scan), *options.disabled_optimizers]
    names = [name for name, _ in providers]
    details = [dict(given) for _, given in providers]
    kept = _give_weights(native, weights or {}, options)
    with (
        removing_trace_on_error(options),
        _arena(native, options, len(model) if isinstance(model, bytes) else 0),
    ):
        for name, given in zip(names, details, strict=True):
            if name in _LIMITS and options.memory_limit is not None:
                given.setdefault(_LIMITS[name], str(options.memory_limit))
        created = onnxruntime.InferenceSession(
            model, native, names, details, enable_fallback=0, disabled_optimizers=left_out
        )
    created.kept = kept  # onnxruntime does not copy them
    reads_bytes_in_place = any("ort_model_bytes" in key for key in options.config_entries)
    if not reads_bytes_in_place:
        created._model_bytes = None  # only needed to open the model again
    return created


def _give_weights(
    native: Any, weights: Mapping[str, np.ndarray[Any, Any]], options: SessionOptions
) -> list[Any]:
    """Pass weights to onnxruntime, which copies them unless they are shared.

    Returns the objects that must be kept alive with the session.
    """
    if not weights:
        return []
    if options.shared is None:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        native.add_external_initializers(list(weights), values)
        return []
    held = options.shared.hold(weights)
    native.add_external_initializers(list(held), [one.value for one in held.values()])
    for name in held.keys() - options.initializers.keys():
        native.add_initializer(name, held[name].value)
    return list(held.values())


def _arena(native: Any, options: SessionOptions, model: int) -> AbstractContextManager[None]:
    """The arena of a session: shared, or limited to what the weights leave of the limit."""
    if options.shared is not None:
        if options.memory_limit is not None:
            raise OptionError(
                "memory_limit and shared cannot be given together: a shared arena has one limit\n"
                "give the limit to all of them: SharedMemory(memory_limit=...)"
            )
        if options.native is not None:
            raise OptionError(
                "shared cannot be used with onnxruntime's SessionOptions, which keep it alive\n"
                "use onward.SessionOptions"
            )
        return options.shared.arena(native)
    if options.memory_limit is None:
        return nullcontext()
    check_limit(options.memory_limit)
    return limited_arena(native, max(options.memory_limit - model, 1))


def _bound_folding(
    model: bytes | str, native: Any, options: SessionOptions, scan: ModelScan | None
) -> list[str]:
    """Limit constant folding. Returns the optimizers to disable."""
    if scan is None and (not isinstance(model, bytes) or model[4:8] == b"ORTM"):
        return []
    if options.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL:
        return []
    if scan is None:
        assert isinstance(model, bytes)
        scan = scan_model(model, options.limits, any_domain=True)
    try:
        native.get_session_config_entry(folding_limit.SETTING)
    except RuntimeError:  # the user has not set it
        native.add_session_config_entry(
            folding_limit.SETTING, str(folding_limit.max_folded_bytes(scan))
        )
    return folding_limit.disabled_optimizers(scan)


def native_options(options: SessionOptions) -> Any:
    """onnxruntime's SessionOptions with the values of ours, or those that the user gave."""
    if options.native is not None:
        return options.native
    native = onnxruntime.SessionOptions()
    for name in _SCALARS:
        setattr(native, name, getattr(options, name))
    if are_threads_shared():
        native.use_per_session_threads = False
    for name, kind in _ENUMS.items():
        setattr(native, name, kind(int(getattr(options, name))))
    for name, size in options.free_dimensions.items():
        native.add_free_dimension_override_by_name(name, size)
    for denotation, size in options.free_dimension_denotations.items():
        native.add_free_dimension_override_by_denotation(denotation, size)
    for key, entry in options.config_entries.items():
        if key != "session.disable_cpu_ep_fallback":  # checked by Onward, node by node
            native.add_session_config_entry(key, entry)
    for name, value in options.initializers.items():
        native.add_initializer(name, value)
    for library in options.custom_op_libraries:
        _register(native, library)
    return native


def _register(native: Any, library: str) -> None:
    try:
        native.register_custom_ops_library(library)
    except Exception as error:  # its text has the loader's reason
        reason = str(error).rpartition("FAIL : ")[2].strip()
        raise OptionError(
            f"custom operator library {library!r} cannot be loaded: {reason}\n"
            "give a shared library that was built for this onnxruntime"
        ) from error


def native_run_options(options: Any) -> Any:
    """onnxruntime's RunOptions with the values of ours; `terminate` stays in sync."""
    if not isinstance(options, RunOptions):
        return options
    native = onnxruntime.RunOptions()
    native.log_severity_level = options.log_severity_level
    native.log_verbosity_level = options.log_verbosity_level
    native.logid = options.logid
    native.only_execute_path_to_fetches = options.only_execute_path_to_fetches
    if options.shrink_arena:
        native.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    for key, entry in options.run_config_entries.items():
        native.add_run_config_entry(key, entry)
    for adapter in options.active_adapters:
        native.add_active_adapter(adapter)
    return options.followed_by(native)


def typed_error(error: Exception, memory_limit: int | None) -> OnwardError:
    """Onward's error for an exception of onnxruntime."""
    text = str(error)
    if memory_limit is not None and "Available memory of" in text:
        return MemoryLimitExceeded(
            f"the run needs more than its memory limit of {memory_limit:,} bytes\n"
            "raise SessionOptions.memory_limit, or feed smaller batches"
        )
    node = _FAILED_NODE.search(text)
    if node is not None and not any(words in text for words in _NO_MEMORY):
        return NodeFailed(f"onnxruntime failed: {text}", node[1])
    return ProviderError(f"onnxruntime failed: {text}")
