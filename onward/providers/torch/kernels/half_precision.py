"""Sixteen-bit floats on the CPU: computed as float32, and rounded once at the end.

Most CPUs have no sixteen-bit arithmetic, and torch's matrix products in it are then hundreds of
times slower than in float32. Kernels that are mostly matrix products are decorated:

    @kernel("Attention")
    @float32_on_cpu
    def attention(...): ...

On a GPU such a kernel runs as it is written. The decorator goes under `@kernel`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from onward.providers.torch.dtypes import Tensor

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_HALVES = (torch.float16, torch.bfloat16)


def float32_on_cpu(function: Kernel) -> Kernel:
    """Run a kernel whose first input has sixteen bits in float32, where that is faster."""

    @functools.wraps(function)
    def run(x: Tensor, *inputs: Any, **attributes: Any) -> Any:
        if x.dtype not in _HALVES or not x.is_cpu:
            return function(x, *inputs, **attributes)
        ys = function(x.float(), *[_widened(y) for y in inputs], **attributes)
        if isinstance(ys, tuple):
            return tuple(_narrowed(y, x.dtype) for y in ys)
        return _narrowed(ys, x.dtype)

    return cast(Kernel, run)


def _widened(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.dtype in _HALVES else x


def _narrowed(y: Any, dtype: torch.dtype) -> Any:
    return y.to(dtype) if isinstance(y, Tensor) and y.dtype == torch.float32 else y
