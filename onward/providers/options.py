"""SessionOptions and RunOptions: ONNX Runtime's names, and the few settings it has no name for."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from onward.errors import OptionError
from onward.graph.limits import DEFAULT_LIMITS, ModelLimits

if TYPE_CHECKING:
    from onward.providers.ort.shared import SharedMemory


class GraphOptimizationLevel(IntEnum):
    """How far graphs are rewritten before they run (ONNX Runtime's values)."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """One operator or part at a time, or independent ones side by side."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """In which order ONNX Runtime visits a graph."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass(kw_only=True)
class SessionOptions:
    """Every setting of an inference session.

    >>> options = SessionOptions(intra_op_num_threads=2)
    >>> options.add_free_dimension_override_by_name("batch", 1)
    """

    # threads
    intra_op_num_threads: int = 0  # 0: as many as the engine finds right
    inter_op_num_threads: int = 0
    use_per_session_threads: bool = True
    # graph
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    execution_order: int = ExecutionOrder.DEFAULT
    own_passes: bool = False  # Onward's passes before the engine's own (Onward's own)
    optimized_model_filepath: str = ""  # where to write the graph as it was optimised
    use_deterministic_compute: bool = False
    # memory
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    memory_limit: int | None = None  # bytes; None: no limit (Onward's own)
    shared: SharedMemory | None = None  # weights and arena that sessions share (Onward's own)
    # running
    log_severity_level: int = 2  # 0 verbose, 1 info, 2 warning, 3 error, 4 fatal
    log_verbosity_level: int = 0
    logid: str = ""
    enable_profiling: bool = False
    profile_file_prefix: str = "onward_profile_"
    disable_fallback: bool = False  # only the listed providers may run nodes (Onward's own)
    result_cache_bytes: int = 0  # remember results of identical feeds; 0: never (Onward's own)
    # models that one does not trust (Onward's own)
    run_timeout: float | None = None  # seconds that a run may take; None: no limit
    isolated: bool = False  # open and run the model in a process of its own
    limits: ModelLimits = DEFAULT_LIMITS  # how much a model may ask for
    open_timeout: float | None = 60.0  # seconds that an isolated model may take to open

    free_dimensions: dict[str, int] = field(default_factory=dict)
    free_dimension_denotations: dict[str, int] = field(default_factory=dict)
    config_entries: dict[str, str] = field(default_factory=dict)
    initializers: dict[str, Any] = field(default_factory=dict)
    custom_op_libraries: list[str] = field(default_factory=list)
    native: Any = field(default=None, repr=False)  # the onnxruntime.SessionOptions it was made from

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set one of ONNX Runtime's session configuration entries by its key."""
        self.config_entries[key] = value
        if key == "session.disable_cpu_ep_fallback":
            self.disable_fallback = value == "1"

    def get_session_config_entry(self, key: str) -> str:
        if key not in self.config_entries:
            raise OptionError(f"no session configuration entry {key!r} was set")
        return self.config_entries[key]

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix a symbolic dimension, such as the batch, by its name in the model."""
        self.free_dimensions[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix the dimensions that carry an ONNX denotation, such as DATA_BATCH."""
        self.free_dimension_denotations[denotation] = size

    def add_initializer(self, name: str, ort_value: Any) -> None:
        """Give an initializer's data as an OrtValue, shared between sessions."""
        self.initializers[name] = ort_value

    def register_custom_ops_library(self, path: str | os.PathLike[str]) -> None:
        """Load a shared library of custom operators (ONNX Runtime's providers run them)."""
        self.custom_op_libraries.append(os.fspath(path))

    @classmethod
    def of(cls, options: Any) -> SessionOptions:
        """These options: ours as they are, onnxruntime's read attribute by attribute."""
        if options is None:
            return cls()
        if isinstance(options, cls):
            return options
        if type(options).__name__ != "SessionOptions":
            raise TypeError(f"sess_options is a SessionOptions, not {type(options).__name__}")
        ours = cls(native=options)
        for attribute in fields(cls):
            if hasattr(options, attribute.name):
                value = getattr(options, attribute.name)
                kind = type(getattr(ours, attribute.name))
                setattr(ours, attribute.name, int(value) if issubclass(kind, int) else value)
        try:
            entry = options.get_session_config_entry("session.disable_cpu_ep_fallback")
        except RuntimeError:  # it was not set
            entry = "0"
        if entry == "1":  # onnxruntime refuses this beside its CPU provider: we keep it ourselves
            ours.disable_fallback, ours.native = True, None
        return ours


def has_own_operators(options: SessionOptions) -> bool:
    """Whether operators of any domain may have an implementation: the user registered some."""
    return bool(options.custom_op_libraries) or options.native is not None


class RunOptions:
    """Settings of one run. `terminate` may be set from another thread while it runs.

    >>> RunOptions(timeout=0.5).timeout
    0.5
    """

    def __init__(self, timeout: float | None = None) -> None:
        self.timeout = timeout  # seconds; None: SessionOptions.run_timeout (Onward's own)
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self.shrink_arena = False  # give memory back after the run (Onward's own)
        self.run_config_entries: dict[str, str] = {}
        self._terminate = False
        self._followers: weakref.WeakSet[Any] = weakref.WeakSet()  # those of runs under way
        self._lock = threading.Lock()

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set one of ONNX Runtime's run configuration entries by its key."""
        self.run_config_entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        if key not in self.run_config_entries:
            raise OptionError(f"no run configuration entry {key!r} was set")
        return self.run_config_entries[key]

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
        """Let an engine's own options follow `terminate` while they live, and return them."""
        with self._lock:
            native.terminate = self._terminate
            self._followers.add(native)
        return native

    @classmethod
    def of(cls, native: Any) -> RunOptions:
        """onnxruntime's, read attribute by attribute."""
        ours = cls()
        for name in vars(ours):
            if hasattr(native, name):
                setattr(ours, name, getattr(native, name))
        return ours

    def for_one_run(self) -> RunOptions:
        """The same settings, which can be ended without ending whoever shares them."""
        one = RunOptions()
        kept = ("_terminate", "_followers", "_lock")
        vars(one).update({k: v for k, v in vars(self).items() if k not in kept})
        self.followed_by(one)
        return one
