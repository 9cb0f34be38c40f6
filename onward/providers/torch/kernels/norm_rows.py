"""The gradient of a normalisation over rows, with what is around it, as one Triton kernel.

    dy = Σ terms,  xhat = (x - mean) inv,  g = dy scale
    dx = inv (g - mean(g) - xhat mean(g xhat)) + residual,  masked = dx kept factor
    sums over rows: dscale = Σ dy xhat, db = Σ dy, Σ masked

Each program walks through some of the rows, and keeps its sums in registers. Dropout's numbers are
those of passes/random_functions.py.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_TILE = 1024  # numbers that a program works on at once, or a longer row
_BY_WARP = 256  # of them
_PROGRAMS = 4  # for each multiprocessor: the fastest of those tried on an H200


@triton.jit
def _kept(number, key, own, ratio):  # type: ignore[no-untyped-def]
    """Whether dropout keeps the elements of these numbers."""
    offset = tl.load(key) + own
    stride = (tl.load(key + 1) ^ own) | 1
    h = (number * stride + offset).to(tl.uint32, bitcast=True)
    h = (h ^ (h >> 17)) * 0xED5AD4BB
    h = (h ^ (h >> 11)) * 0xAC4C1B51
    h = (h ^ (h >> 15)) * 0x31848BAB
    h = h ^ (h >> 14)
    return (h >> 8).to(tl.float32) * 5.9604644775390625e-08 >= ratio


@triton.jit  # type: ignore[untyped-decorator]
def _load(  # type: ignore[no-untyped-def]
    d0,
    d1,
    d2,
    d3,
    x,
    residual,
    row,
    rows,
    lanes,
    columns: tl.constexpr,
    terms: tl.constexpr,
    has_residual: tl.constexpr,
):
    """Some rows of all inputs, as they are stored; those that are not there repeat the first."""
    places = row.to(tl.int64) * columns + lanes
    mask = (row < rows) & (lanes < columns)
    a = tl.load(d0 + places, mask=mask, other=0.0)
    b, c, d, e = a, a, a, a
    if terms > 1:
        b = tl.load(d1 + places, mask=mask, other=0.0)
    if terms > 2:
        c = tl.load(d2 + places, mask=mask, other=0.0)
    if terms > 3:
        d = tl.load(d3 + places, mask=mask, other=0.0)
    z = tl.load(x + places, mask=mask, other=0.0)
    if has_residual:
        e = tl.load(residual + places, mask=mask, other=0.0)
    return a, b, c, d, z, e


@triton.jit  # type: ignore[untyped-decorator]
def _rows(  # type: ignore[no-untyped-def]
    x,
    scale,
    mean,
    inv,
    residual,
    key,
    d0,
    d1,
    d2,
    d3,
    dx,
    masked,
    sums,  # (3, programs, columns)
    rows,
    steps,
    epsilon,
    own,
    ratio,
    factor,
    columns: tl.constexpr,
    terms: tl.constexpr,
    centred: tl.constexpr,
    has_residual: tl.constexpr,
    has_dropout: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
):
    program, programs = tl.program_id(0), tl.num_programs(0)
    lanes = tl.arange(0, wide)[None, :]
    inside = lanes < columns
    weight = tl.load(scale + lanes, mask=inside, other=0.0).to(tl.float32)
    dscale = tl.zeros([tall, wide], tl.float32)
    db = tl.zeros([tall, wide], tl.float32)
    total = tl.zeros([tall, wide], tl.float32)
    stride = programs * tall
    row = program * tall + tl.arange(0, tall)[:, None]
    n0, n1, n2, n3, nx, nr = _load(
        d0, d1, d2, d3, x, residual, row, rows, lanes, columns, terms, has_residual
    )
    for _ in range(steps):
        # the next rows are on their way while these are computed
        c0, c1, c2, c3, cx, cr = n0, n1, n2, n3, nx, nr
        n0, n1, n2, n3, nx, nr = _load(
            d0, d1, d2, d3, x, residual, row + stride, rows, lanes, columns, terms, has_residual
        )
        mask = (row < rows) & inside
        dy = c0.to(tl.float32)
        if terms > 1:
            dy += c1.to(tl.float32)
        if terms > 2:
            dy += c2.to(tl.float32)
        if terms > 3:
            dy += c3.to(tl.float32)
        z = cx.to(tl.float32)
        if centred:
            by = tl.load(inv + row, mask=row < rows, other=0.0)
            z = tl.where(mask, z - tl.load(mean + row, mask=row < rows, other=0.0), 0.0)
        else:
            by = tl.rsqrt(tl.sum(z * z, 1)[:, None] / columns + epsilon)
        xhat = z * by
        g = dy * weight
        result = g - xhat * (tl.sum(g * xhat, 1)[:, None] / columns)
        if centred:
            result = result - tl.sum(g, 1)[:, None] / columns
        result = result * by
        if has_residual:
            result += cr.to(tl.float32)
        places = row.to(tl.int64) * columns + lanes
        narrow = result.to(dx.dtype.element_ty)
        tl.store(dx + places, narrow, mask=mask)
        if has_dropout:
            kept = _kept(row * columns + lanes, key, own, ratio)  # its numbers wrap around, too
            left = tl.where(kept, narrow.to(tl.float32) * factor, 0.0).to(dx.dtype.element_ty)
            tl.store(masked + places, left, mask=mask)
            total += tl.where(mask, left.to(tl.float32), 0.0)
        dscale += dy * xhat
        db += dy
        row += stride
    at = program * columns + lanes
    between = programs * columns
    tl.store(sums + at, tl.sum(dscale, 0)[None, :], mask=inside)
    tl.store(sums + between + at, tl.sum(db, 0)[None, :], mask=inside)
    tl.store(sums + 2 * between + at, tl.sum(total, 0)[None, :], mask=inside)


def norm_gradients(
    x: torch.Tensor,
    scale: torch.Tensor,
    mean: torch.Tensor | None,
    inv: torch.Tensor | None,
    residual: torch.Tensor | None,
    terms: list[torch.Tensor],
    epsilon: float,
    key: torch.Tensor | None,
    own: int,
    ratio: float,
    factor: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dx, masked (empty without dropout), and the three sums over rows, in float32.

    x, residual, terms: (rows, columns), contiguous; mean, inv: a float32 number for each row.
    """
    rows, columns = x.shape
    wide = max(16, triton.next_power_of_2(columns))
    tall = max(1, min(_TILE // wide, 16))
    most = torch.cuda.get_device_properties(x.device).multi_processor_count * _PROGRAMS
    programs = max(1, min(most, triton.cdiv(rows, tall)))
    sums = torch.empty((3, programs, columns), dtype=torch.float32, device=x.device)
    dx = torch.empty_like(x)
    masked = x.new_empty((0, columns)) if key is None else torch.empty_like(x)
    given = [*terms, *[terms[0]] * (4 - len(terms))]
    grid: Any = (programs,)
    _rows[grid](
        *(x, scale, x if mean is None else mean, x if inv is None else inv),
        *(x if residual is None else residual, x if key is None else key, *given),
        *(dx, masked, sums, rows, triton.cdiv(rows, tall * programs), epsilon),
        *(own, ratio, factor),
        columns=columns,
        terms=len(terms),
        centred=mean is not None,
        has_residual=residual is not None,
        has_dropout=key is not None,
        tall=tall,
        wide=wide,
        num_warps=max(1, min(16, tall * wide // _BY_WARP)),
    )
    return dx, masked, sums.sum(1)
