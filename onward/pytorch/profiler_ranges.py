"""Named ranges for NVIDIA's profilers, the memory in use, and the version of torch."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("onward")


def torch_nvtx_range_push(msg: str) -> int | None:
    """Open a range of this name in NVIDIA's profilers; nothing happens without CUDA."""
    nvtx: Any = torch.cuda.nvtx
    return int(nvtx.range_push(msg)) if torch.cuda.is_available() else None


def torch_nvtx_range_pop() -> int | None:
    """Close the range that was opened last; nothing happens without CUDA."""
    nvtx: Any = torch.cuda.nvtx
    return int(nvtx.range_pop()) if torch.cuda.is_available() else None


def nvtx_function_decorator(func: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that each call is a range of its name.

    >>> nvtx_function_decorator(len)([1, 2])
    2
    """

    @functools.wraps(func)
    def ranged(*args: P.args, **keywords: P.kwargs) -> T:
        torch_nvtx_range_push(func.__qualname__)
        try:
            return func(*args, **keywords)
        finally:
            torch_nvtx_range_pop()

    return ranged


def log_memory_usage(
    cur_phase: str,
    rank_0_only: bool = True,
    step_info: str = "",
    logger: logging.Logger | None = None,
    module: torch.nn.Module | None = None,
) -> None:
    """Log the CUDA memory in use, as one line; with a module, what its tensors take of it.

    Only on rank 0 unless `rank_0_only` is False, and only where CUDA is available.
    """
    if not torch.cuda.is_available():
        return
    if rank_0_only and dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
        return
    parts = {
        "allocated": torch.cuda.memory_allocated(),
        "max allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "max reserved": torch.cuda.max_memory_reserved(),
    }
    if module is not None:
        parameters = list(module.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        parts["parameters"] = _bytes_of(parameters)
        parts["gradients"] = _bytes_of(gradients)
        parts["buffers"] = _bytes_of(list(module.buffers()))
    text = " | ".join(f"{name}: {size / 2**20:.0f} MiB" for name, size in parts.items())
    (logger or log).info("%s", " ".join(filter(None, [step_info, f"memory ({cur_phase})", text])))


def _bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def get_runtime_pytorch_version() -> torch.torch_version.TorchVersion:
    """torch's version without the build's name; it compares as a version with strings and tuples.

    >>> get_runtime_pytorch_version() >= "2.0"
    True
    """
    return torch.torch_version.TorchVersion(torch.__version__.split("+")[0])
