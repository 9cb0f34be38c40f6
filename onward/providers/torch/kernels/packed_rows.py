"""A matrix of 8-bit numbers with its rows contiguous in memory, as one Triton kernel.

torch copies 8-bit numbers of a transposed matrix one by one.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_BLOCK, _WARPS = 128, 8


@triton.jit  # type: ignore[untyped-decorator]
def _packed(  # type: ignore[no-untyped-def]
    x, y, rows, columns, width, row_stride, column_stride, block: tl.constexpr
):
    """y (rows, width) becomes x (rows, columns), of any strides, and zeros."""
    row = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)[:, None]
    column = tl.program_id(1).to(tl.int64) * block + tl.arange(0, block)[None, :]
    is_given = (row < rows) & (column < columns)
    tile = tl.load(x + row * row_stride + column * column_stride, mask=is_given, other=0)
    tl.store(y + row * width + column, tile, mask=(row < rows) & (column < width))


def packed_rows(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """x with contiguous rows, each filled with zeros up to a multiple of that many numbers."""
    rows, columns = x.shape
    width = columns + -columns % multiple
    if x.is_contiguous() and width == columns:
        return x
    y = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    grid: Any = (triton.cdiv(rows, _BLOCK), triton.cdiv(width, _BLOCK))
    numbers = x.view(torch.uint8), y.view(torch.uint8)
    _packed[grid](*numbers, rows, columns, width, *x.stride(), block=_BLOCK, num_warps=_WARPS)
    return y
