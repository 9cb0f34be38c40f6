"""Limits that the operating system enforces on this process: memory, files, rights."""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from onward.providers.options import SessionOptions

if sys.platform != "win32":
    import resource

_ENGINES = {"torch", "openvino", "onnx", "onnx_ir", "onnxscript", "onnxruntime"}
_PR_SET_NO_NEW_PRIVS = 38


def drop_rights() -> None:
    """Gain no rights and write no core dump from now on."""
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def limit_resources(memory: int | None, options: SessionOptions, writes: bool) -> None:
    """Allow `memory` bytes more than this process has now, and no files unless it writes."""
    if sys.platform == "win32":
        return
    if not writes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if memory is not None:
        threads = options.intra_op_num_threads or os.cpu_count() or 1
        stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
        stack = stack if stack != resource.RLIM_INFINITY else 8 << 20
        sys.meta_path.insert(0, _MemoryLimit(memory + threads * stack))


class _MemoryLimit(importlib.abc.MetaPathFinder):
    """Private memory without the engines' own; the limit is raised when one is imported later.

    RLIMIT_DATA counts private writable memory, used or not. Files that are mapped read-only,
    reserved address space and shared libraries do not count.
    """

    def __init__(self, allowed: int) -> None:
        self._end, self._depth = _private_bytes() + allowed, 0
        self._set(self._end)

    def _set(self, end: int) -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (end, resource.RLIM_INFINITY))

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
        if name not in _ENGINES or self._depth:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            before, self._depth = _private_bytes(), 1  # its own imports count as part of it
            self._set(resource.RLIM_INFINITY)
            try:
                execute(module)
            finally:
                self._depth = 0
                self._end += _private_bytes() - before
                self._set(self._end)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _private_bytes() -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmData")
