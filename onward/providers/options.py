"""SessionOptions and RunOptions: ONNX Runtime's settings, and the few that only Onward has."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import onward.settings as settings
from onward.errors import OptionError, OptionTypeError
from onward.graph.limits import DEFAULT_LIMITS, ModelLimits
from onward.providers.option_checks import (
    SEVERITY,
    SIZE,
    THREADS,
    config_entry,
    entry_of,
    fix_dimension,
    ort_tensor,
    shared_memory,
)
from onward.settings import CheckedSettings, explain_keywords

if TYPE_CHECKING:
    from onward.providers.ort.shared_memory import SharedMemory


class GraphOptimizationLevel(IntEnum):
    """How far graphs are rewritten before they run (ONNX Runtime's values)."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """One operator or part at a time, or independent ones in parallel."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """The order in which ONNX Runtime visits nodes."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


_NAME_PROVIDERS = "name them instead: InferenceSession(model, options, providers=[...])"


@explain_keywords
@dataclass(kw_only=True)
class SessionOptions(CheckedSettings):
    """Every setting of an inference session, under ONNX Runtime's names where it has them.

    Unknown names and invalid values are refused when they are set.

    >>> options = SessionOptions(intra_op_num_threads=2)
    >>> options.add_free_dimension_override_by_name("batch", 1)

    Threads:
        intra_op_num_threads: threads that one operator may use; 0: the engine chooses
        inter_op_num_threads: operators or parts that run at the same time; 0: the engine chooses
        use_per_session_threads: whether the session has its own threads

    Graph:
        graph_optimization_level: how far the graph is rewritten, a GraphOptimizationLevel
        execution_mode: one operator or part at a time, or several; an ExecutionMode
        execution_order: the order in which ONNX Runtime visits nodes, an ExecutionOrder
        own_passes: run Onward's passes before the engine's own (Onward only)
        optimized_model_filepath: where to write the optimised model; "": nowhere
        use_deterministic_compute: prefer kernels whose results repeat bit for bit

    Memory:
        enable_cpu_mem_arena: keep freed memory for later runs
        enable_mem_pattern: plan memory ahead for feeds of a known shape
        enable_mem_reuse: let values share memory when their lifetimes allow it
        memory_limit: the most bytes that the session may take; None: no limit (Onward only)
        shared: a SharedMemory with weights and an arena for several sessions (Onward only)

    Running:
        log_severity_level: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal
        log_verbosity_level: how much ONNX Runtime's debug builds log at severity 0
        logid: a name for this session in ONNX Runtime's log
        enable_profiling: write a trace of every operator
        profile_file_prefix: how the name of the trace's file begins
        disable_fallback: only the listed providers may run nodes (Onward only)
        result_cache_bytes: cache the results of identical feeds; 0: never (Onward only)

    Models that are not trusted (Onward only):
        run_timeout: seconds that a run may take; None: no limit
        isolated: open and run the model in a separate process
        limits: how much a model may ask for, a ModelLimits
        open_timeout: seconds that an isolated model may take to open; None: no limit

    What the methods collect:
        free_dimensions: sizes by dimension name (add_free_dimension_override_by_name)
        free_dimension_denotations: sizes by ONNX denotation
        config_entries: ONNX Runtime's other settings by key (add_session_config_entry)
        initializers: OrtValues by name (add_initializer)
        disabled_optimizers: names of ONNX Runtime's own optimizers to leave out
        custom_op_libraries: paths (register_custom_ops_library)
        added_providers: providers and their options, in order (add_provider)
        native: the onnxruntime.SessionOptions that these were read from, if any
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    use_per_session_threads: bool = True
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    execution_order: int = ExecutionOrder.DEFAULT
    own_passes: bool = False
    optimized_model_filepath: str = ""
    use_deterministic_compute: bool = False
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    memory_limit: int | None = None
    shared: SharedMemory | None = None
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    enable_profiling: bool = False
    profile_file_prefix: str = "onward_profile_"
    disable_fallback: bool = False
    result_cache_bytes: int = 0
    run_timeout: float | None = None
    isolated: bool = False
    limits: ModelLimits = DEFAULT_LIMITS
    open_timeout: float | None = 60.0
    free_dimensions: dict[str, int] = field(default_factory=dict)
    free_dimension_denotations: dict[str, int] = field(default_factory=dict)
    config_entries: dict[str, str] = field(default_factory=dict)
    initializers: dict[str, Any] = field(default_factory=dict)
    disabled_optimizers: list[str] = field(default_factory=list)
    custom_op_libraries: list[str] = field(default_factory=list)
    added_providers: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    native: Any = field(default=None, repr=False)

    _checks: ClassVar[Mapping[str, settings.Check]] = {
        "intra_op_num_threads": THREADS,
        "inter_op_num_threads": THREADS,
        "use_per_session_threads": settings.flag,
        "graph_optimization_level": settings.one_of(GraphOptimizationLevel),
        "execution_mode": settings.one_of(ExecutionMode),
        "execution_order": settings.one_of(ExecutionOrder),
        "own_passes": settings.flag,
        "optimized_model_filepath": settings.path_text,
        "use_deterministic_compute": settings.flag,
        "enable_cpu_mem_arena": settings.flag,
        "enable_mem_pattern": settings.flag,
        "enable_mem_reuse": settings.flag,
        "memory_limit": settings.byte_count,
        "shared": shared_memory,
        "log_severity_level": SEVERITY,
        "log_verbosity_level": settings.whole_number(-1),
        "logid": settings.text,
        "enable_profiling": settings.flag,
        "profile_file_prefix": settings.path_text,
        "disable_fallback": settings.flag,
        "result_cache_bytes": settings.whole_number(high=1 << 62, hint="give 0 for no cache"),
        "run_timeout": settings.seconds,
        "isolated": settings.flag,
        "limits": settings.instance_of(ModelLimits, "ModelLimits(nodes=10_000)"),
        "open_timeout": settings.seconds,
        "free_dimensions": settings.mapping(SIZE, "{'batch': 1}"),
        "free_dimension_denotations": settings.mapping(SIZE, "{'DATA_BATCH': 1}"),
        "config_entries": settings.mapping(settings.text, "{'session.set_denormal_as_zero': '1'}"),
        "initializers": settings.mapping(ort_tensor, "{'weight': OrtValue}"),
        "disabled_optimizers": settings.listed,
        "custom_op_libraries": settings.listed,
        "added_providers": settings.listed,
        "native": settings.anything,
    }
    _absent: ClassVar[Mapping[str, str]] = {
        "add_external_initializers": "put the tensors into the model: a session takes an "
        "onnx.ModelProto or an onnx_ir.Model too",
        "add_external_initializers_from_files_in_memory": "write the files next to the model, and "
        "open it by its path",
        "add_provider_for_devices": _NAME_PROVIDERS,
        "set_provider_selection_policy": 'let the fastest be measured: providers="auto"',
        "set_provider_selection_policy_delegate": 'let the fastest be measured: providers="auto"',
        "set_ep_context_data_read_func": "keep the compiled program in the model, or next to it",
        "clear_ep_context_data_read_func": "keep the compiled program in the model, or next to it",
        "set_load_cancellation_flag": "to bound the time that opening may take: "
        "SessionOptions(isolated=True, open_timeout=10.0)",
    }

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set one of ONNX Runtime's session configuration entries by its key."""
        key, value = config_entry(key, value)
        self.config_entries[key] = value
        if key == "session.disable_cpu_ep_fallback":
            self.disable_fallback = value == "1"

    def get_session_config_entry(self, key: str) -> str:
        """The value of a session configuration entry that was set."""
        return entry_of(self.config_entries, key, "session")

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix a symbolic dimension, such as the batch, by its name in the model."""
        fix_dimension(self.free_dimensions, name, size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix the dimensions that carry an ONNX denotation, such as DATA_BATCH."""
        fix_dimension(self.free_dimension_denotations, denotation, size)

    def add_initializer(self, name: str, ort_value: Any) -> None:
        """Give an initializer's data as an OrtValue, shared between sessions."""
        name = settings.text("the name of an initializer", name)
        self.initializers[name] = ort_tensor(f"initializer {name!r}", ort_value)

    def register_custom_ops_library(self, path: str | os.PathLike[str]) -> None:
        """Load a shared library of custom operators (ONNX Runtime's providers run them)."""
        library = settings.path_text("the path of a custom operator library", path)
        if os.path.dirname(library) and not Path(library).exists():  # a bare name is searched for
            raise OptionError(
                f"no custom operator library at {library!r}\ngive the path of a shared library"
            )
        self.custom_op_libraries.append(library)

    def add_provider(self, name: str, options: Mapping[str, str] | None = None) -> None:
        """Add a provider, for sessions that are made without a list of providers."""
        self.added_providers.append((settings.text("the name of a provider", name), options or {}))

    def has_providers(self) -> bool:
        """Whether a provider was added."""
        return bool(self.added_providers)

    @classmethod
    def of(cls, options: Any) -> SessionOptions:
        """SessionOptions from None, from ours (the same object) or from onnxruntime's (a copy)."""
        if options is None:
            return cls()
        if isinstance(options, cls):
            return options
        if not settings.is_named(options, "SessionOptions"):
            raise OptionTypeError(
                f"sess_options must be a SessionOptions, not {type(options).__name__}\n"
                "such as onward.SessionOptions(intra_op_num_threads=2)"
            )
        ours = cls(native=options)
        for attribute in fields(cls):
            if hasattr(options, attribute.name):
                setattr(ours, attribute.name, getattr(options, attribute.name))
        try:
            entry = options.get_session_config_entry("session.disable_cpu_ep_fallback")
        except RuntimeError:  # it was not set
            entry = "0"
        if entry == "1":  # onnxruntime refuses it for its CPU provider: handled here
            ours.disable_fallback, ours.native = True, None
        return ours


def has_own_operators(options: SessionOptions) -> bool:
    """Whether the user may have registered operators, of any domain."""
    return bool(options.custom_op_libraries) or options.native is not None


@explain_keywords
class RunOptions(CheckedSettings):
    """Settings of one run, under ONNX Runtime's names where it has them.

    `terminate` may be set from another thread during the run.

    >>> RunOptions(timeout=0.5).timeout
    0.5

    Attributes:
        timeout: seconds that the run may take; None: SessionOptions.run_timeout (Onward only)
        log_severity_level: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal
        log_verbosity_level: how much ONNX Runtime's debug builds log at severity 0
        logid: a name for this run in ONNX Runtime's log
        only_execute_path_to_fetches: skip nodes that the requested outputs do not need
        shrink_arena: return memory to the system after the run (Onward only)
        terminate: True stops the runs that use these options as soon as they can
        run_config_entries: ONNX Runtime's other settings by key (add_run_config_entry)
        active_adapters: LoRA adapters (add_active_adapter)
    """

    _checks: ClassVar[Mapping[str, settings.Check]] = {
        "timeout": settings.seconds,
        "log_severity_level": SEVERITY,
        "log_verbosity_level": settings.whole_number(-1),
        "logid": settings.text,
        "only_execute_path_to_fetches": settings.flag,
        "shrink_arena": settings.flag,
        "terminate": settings.flag,
        "run_config_entries": settings.mapping(settings.text, "{'gpu_graph_id': '1'}"),
        "active_adapters": settings.listed,
        "_terminate": settings.anything,
        "_followers": settings.anything,
        "_lock": settings.anything,
    }

    def __init__(self, timeout: float | None = None) -> None:
        self.timeout = timeout
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self.shrink_arena = False
        self.run_config_entries: dict[str, str] = {}
        self.active_adapters: list[Any] = []
        self._terminate = False
        self._followers: weakref.WeakSet[Any] = weakref.WeakSet()  # options of the runs in progress
        self._lock = threading.Lock()

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set one of ONNX Runtime's run configuration entries by its key."""
        key, value = config_entry(key, value)
        self.run_config_entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """The value of a run configuration entry that was set."""
        return entry_of(self.run_config_entries, key, "run")

    def add_active_adapter(self, adapter: Any) -> None:
        """Use a LoraAdapter in this run (models that ONNX Runtime runs as a whole)."""
        self.active_adapters.append(adapter)

    @property
    def terminate(self) -> bool:
        """Stop the runs that use these options as soon as they can."""
        return self._terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        with self._lock:
            self._terminate = value
            followers = list(self._followers)
        for follower in followers:
            follower.terminate = value

    def followed_by(self, native: Any) -> Any:
        """Keep `terminate` of an engine's options equal to ours while they exist; return them."""
        with self._lock:
            native.terminate = self._terminate
            self._followers.add(native)
        return native

    @classmethod
    def of(cls, native: Any) -> RunOptions:
        """RunOptions with the values of onnxruntime's."""
        ours = cls()
        for name in vars(ours):
            if hasattr(native, name):
                setattr(ours, name, getattr(native, name))
        return ours

    def for_one_run(self) -> RunOptions:
        """A copy for one run, which can be terminated without terminating others."""
        one = RunOptions()
        kept = ("_terminate", "_followers", "_lock")
        vars(one).update({k: v for k, v in vars(self).items() if k not in kept})
        self.followed_by(one)
        return one
