"""DebugOptions of an ORTModule, and what its environment variables set."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from enum import IntFlag
from pathlib import Path
from typing import Any

from onward.errors import OptionError, OptionTypeError, WriteFailed
from onward.training.ortmodule._fallback import _FallbackPolicy
from onward.training.ortmodule._logger import LogLevel
from onward.training.ortmodule.switches import read_choice, read_flag, read_number, read_text

_PATH, _LEVEL = "ORTMODULE_SAVE_ONNX_PATH", "ORTMODULE_LOG_LEVEL"


class _SaveOnnxOptions:
    """Whether graphs are written, and where."""

    def __init__(self, save: bool, name_prefix: str, path: str) -> None:
        self.save, self.name_prefix = save, name_prefix
        self.path = read_text(_PATH, path or str(Path.cwd()))
        if not save:
            return
        if not os.access(self.path, os.W_OK):
            raise WriteFailed(
                f"Directory {self.path} is not writable. Please set the {_PATH} environment "
                "variable to a writable path."
            )
        if not isinstance(name_prefix, str):
            raise OptionTypeError(f"Expected name prefix of type str, got {type(name_prefix)}.")
        if not name_prefix:
            raise OptionError("onnx_prefix must be provided when save_onnx is set.")


class _LoggingOptions:
    """The level from which messages are logged; the environment variable takes precedence."""

    def __init__(self, log_level: LogLevel) -> None:
        if not isinstance(log_level, LogLevel):
            raise OptionTypeError(f"Expected log_level of type LogLevel, got {type(log_level)}.")
        self.log_level: LogLevel = read_choice(_LEVEL, log_level, dict(LogLevel.__members__))


class DebugOptions:
    """What an ORTModule logs, and whether it writes its graphs.

    Args:
        log_level: messages of this level and above are logged; ORTMODULE_LOG_LEVEL, if it is set,
            takes precedence
        save_onnx: write each captured graph, its gradient graph and the graphs that run
        onnx_prefix: the beginning of the files' names; needed with `save_onnx`
        save_path: the folder; ORTMODULE_SAVE_ONNX_PATH, if it is set, takes precedence; by default
            the current folder
        config: accepted for the peer's scripts; it has no effect there, either

    >>> DebugOptions(log_level=LogLevel.INFO).logging.log_level.name
    'INFO'
    """

    def __init__(
        self,
        log_level: LogLevel = LogLevel.WARNING,
        save_onnx: bool = False,
        onnx_prefix: str = "",
        save_path: str = "",
        config: Any = None,
    ) -> None:
        self.log_level, self.save_onnx, self.onnx_prefix = log_level, save_onnx, onnx_prefix
        self.save_onnx_models = _SaveOnnxOptions(save_onnx, onnx_prefix, save_path)
        self.logging = _LoggingOptions(log_level)


class _SkipCheck(IntFlag):
    """Checks that are left out after the first call."""

    SKIP_CHECK_DISABLED = 1
    SKIP_CHECK_DEVICE = 2
    SKIP_CHECK_BUILD_GRADIENT = 4
    SKIP_CHECK_EXECUTION_AGENT = 8

    def is_set(self, check: _SkipCheck) -> bool:
        """Whether a check is left out; none is with SKIP_CHECK_DISABLED."""
        return not self.is_disabled() and check in self

    def is_disabled(self) -> bool:
        return _SkipCheck.SKIP_CHECK_DISABLED in self


_SKIPPED = (
    _SkipCheck.SKIP_CHECK_DEVICE
    | _SkipCheck.SKIP_CHECK_BUILD_GRADIENT
    | _SkipCheck.SKIP_CHECK_EXECUTION_AGENT
)


def _constant(name: str) -> Any:
    """A constant of the package, which users may have changed."""
    return getattr(sys.modules[__name__.rpartition(".")[0]], name)


def _opset() -> int:
    return read_number("ORTMODULE_ONNX_OPSET_VERSION", _constant("ONNX_OPSET_VERSION"))


def _policy() -> _FallbackPolicy:
    known = dict(_FallbackPolicy.__members__)
    default = _constant("ORTMODULE_FALLBACK_POLICY")
    return _FallbackPolicy(read_choice("ORTMODULE_FALLBACK_POLICY", default, known))


def _retry() -> bool:
    return read_flag("ORTMODULE_FALLBACK_RETRY", _constant("ORTMODULE_FALLBACK_RETRY"))


def _skip_check() -> _SkipCheck:
    known = dict(_SkipCheck.__members__)
    return _SkipCheck(read_choice("ORTMODULE_SKIPCHECK_POLICY", _SKIPPED, known))


@dataclass
class _RuntimeOptions:
    """What the environment variables set. The second group is accepted and has no effect."""

    onnx_opset_version: int = field(default_factory=_opset)
    fallback_policy: _FallbackPolicy = field(default_factory=_policy)
    fallback_retry: bool = field(default_factory=_retry)
    skip_check: _SkipCheck = field(default_factory=_skip_check)

    conv_algo_search: str = "HEURISTIC"
    use_static_shape: bool = False
    run_symbolic_shape_infer: bool = True
    enable_custom_autograd_function: bool = True
    use_external_gpu_allocator: bool = True
    enable_grad_acc_optimization: bool = False
    use_memory_efficient_gradient: bool = False
    allow_layer_norm_mod_precision: bool = False
    enable_compute_optimizer: bool = True
    enable_sparse_optimizer: bool = True
    enable_embedding_sparse_optimizer: bool = False
    memory_optimizer_config: str = ""
    probe_level: str = "1"
    print_input_density: bool = False
    print_memory_stat: bool = False
    propagate_cast_ops_strategy: Any = None
    propagate_cast_ops_level: int = 1
    propagate_cast_ops_allow: list[str] = field(default_factory=list)
    enable_triton: bool = False
    ortmodule_cache_dir: str = ""
