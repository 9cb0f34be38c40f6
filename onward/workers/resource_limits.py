"""Limits that the operating system holds: memory and files of the process that sets them."""

from __future__ import annotations

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


def no_cores() -> None:
    """A crash leaves no image of the memory behind."""
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def contain(memory: int | None, options: SessionOptions, writes: bool) -> None:
    """Hold this process to so many bytes more than it has now, and to no files unless it writes."""
    if sys.platform == "win32":
        return
    if not writes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if memory is not None:
        threads = options.intra_op_num_threads or os.cpu_count() or 1
        stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
        stack = stack if stack != resource.RLIM_INFINITY else 8 << 20
        sys.meta_path.insert(0, _Allowance(memory + threads * stack))


class _Allowance(importlib.abc.MetaPathFinder):
    """Private memory beyond what the engines take; the limit moves when one is imported late.

    RLIMIT_DATA counts what is private and writable, whether touched or not. Files that are mapped
    to be read, address space that is only reserved and shared libraries do not count.
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
            before, self._depth = _private_bytes(), 1  # what it imports itself is its own
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
