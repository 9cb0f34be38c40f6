"""Zeros for the samples of a batch that are hidden, as one Triton kernel."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_BLOCK = 4096


@triton.jit  # type: ignore[untyped-decorator]
def _zeros(x, seen, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
    sample = tl.program_id(0)
    if tl.load(seen + sample) == 0:
        start = x + sample.to(tl.int64) * size
        for first in range(0, size, block):
            places = first + tl.arange(0, block)
            zeros = tl.zeros([block], x.dtype.element_ty)
            tl.store(start + places, zeros, mask=places < size)


def zero_samples_(x: torch.Tensor, seen: torch.Tensor) -> None:
    """Write zeros over the samples of x, each contiguous in memory, that are not `seen`."""
    grid: Any = (len(x),)
    _zeros[grid](x, seen.to(torch.uint8), x[0].numel(), block=_BLOCK)
