"""The gradient of a normalisation over rows, with what is around it, as one Triton kernel.

    dy = Σ terms,  xhat = (x - mean) inv,  g = dy scale
    dx = inv (g - mean(g) - xhat mean(g xhat)) + residual,  masked = dx kept factor
    sums over rows: dscale = Σ dy xhat, db = Σ dy, Σ masked

Each program walks through some of the rows, and keeps its sums in registers; a second kernel adds
those of all programs. A row is two tiles, because the size of a tile is a power of two: 768 columns
are 512 and 256. Dropout's numbers are those of passes/random_functions.py.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

_BY_WARP = 256  # columns of a row; with the next, the fastest of those tried on an H200
_NUMBERS = 4096  # that a multiprocessor works on at once


@triton.jit
def _kept(number, offset, stride, least):  # type: ignore[no-untyped-def]
    """Whether dropout keeps the elements of these numbers."""
    h = (number * stride + offset).to(tl.uint32, bitcast=True)
    h = (h ^ (h >> 17)) * 0xED5AD4BB
    h = (h ^ (h >> 11)) * 0xAC4C1B51
    h = (h ^ (h >> 15)) * 0x31848BAB
    h = h ^ (h >> 14)
    return h >= least


@triton.jit  # type: ignore[untyped-decorator]
def _read(place, inside, is_full: tl.constexpr):  # type: ignore[no-untyped-def]
    if is_full:
        return tl.load(place)
    return tl.load(place, mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _write(place, number, inside, is_full: tl.constexpr):  # type: ignore[no-untyped-def]
    if is_full:
        tl.store(place, number)
    else:
        tl.store(place, number, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _load(  # type: ignore[no-untyped-def]
    inputs,
    row,
    lanes,
    columns: tl.constexpr,
    is_full: tl.constexpr,
    terms: tl.constexpr,
    has_residual: tl.constexpr,
):
    """A tile of all inputs, as they are stored; those that are not there repeat the first."""
    x, residual, d0, d1, d2, d3 = inputs
    places = row.to(tl.int64) * columns + lanes
    inside = lanes < columns
    a = _read(d0 + places, inside, is_full)
    b, c, d, e = a, a, a, a
    if terms > 1:
        b = _read(d1 + places, inside, is_full)
    if terms > 2:
        c = _read(d2 + places, inside, is_full)
    if terms > 3:
        d = _read(d3 + places, inside, is_full)
    z = _read(x + places, inside, is_full)
    if has_residual:
        e = _read(residual + places, inside, is_full)
    return z, e, a, b, c, d


@triton.jit  # type: ignore[untyped-decorator]
def _widened(  # type: ignore[no-untyped-def]
    loaded, middle, inside, is_full: tl.constexpr, terms: tl.constexpr
):
    """x - mean and dy of a tile in float32, zero beyond the row."""
    z, _, a, b, c, d = loaded
    centred = z.to(tl.float32) - middle
    if not is_full:
        centred = tl.where(inside, centred, 0.0)
    dy = a.to(tl.float32)
    if terms > 1:
        dy += b.to(tl.float32)
    if terms > 2:
        dy += c.to(tl.float32)
    if terms > 3:
        dy += d.to(tl.float32)
    return centred, dy


@triton.jit  # type: ignore[untyped-decorator]
def _store(  # type: ignore[no-untyped-def]
    result,
    residual,
    outputs,
    draw,
    row,
    lanes,
    columns: tl.constexpr,
    is_full: tl.constexpr,
    has_residual: tl.constexpr,
    has_dropout: tl.constexpr,
):
    """Write a tile of dx and of masked; give the latter in float32."""
    dx, masked = outputs
    offset, stride, least, factor = draw
    places = row.to(tl.int64) * columns + lanes
    inside = lanes < columns
    if has_residual:
        result += residual.to(tl.float32)
    narrow = result.to(dx.dtype.element_ty)
    _write(dx + places, narrow, inside, is_full)
    if has_dropout:
        kept = _kept(row * columns + lanes, offset, stride, least)  # its numbers wrap around, too
        left = tl.where(kept, narrow.to(tl.float32) * factor, 0.0).to(dx.dtype.element_ty)
        _write(masked + places, left, inside, is_full)
        result = left.to(tl.float32)
    return result


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
    epsilon,
    own,
    least,
    factor,
    columns: tl.constexpr,
    terms: tl.constexpr,
    has_mean: tl.constexpr,
    has_residual: tl.constexpr,
    has_dropout: tl.constexpr,
    wide: tl.constexpr,
    rest: tl.constexpr,
):
    program, programs = tl.program_id(0), tl.num_programs(0)
    full: tl.constexpr = wide + rest == columns
    inputs, outputs = (x, residual, d0, d1, d2, d3), (dx, masked)
    offset, stride = 0, 0
    if has_dropout:
        offset = tl.load(key) + own
        stride = (tl.load(key + 1) ^ own) | 1
    draw = (offset, stride, least, factor)
    left = tl.arange(0, wide)
    right = wide + tl.arange(0, rest)
    inside = right < columns
    left_scale = tl.load(scale + left).to(tl.float32)
    right_scale = tl.load(scale + right, mask=inside, other=0.0).to(tl.float32)
    left_dscale = tl.zeros([wide], tl.float32)
    left_db = tl.zeros([wide], tl.float32)
    left_total = tl.zeros([wide], tl.float32)
    right_dscale = tl.zeros([rest], tl.float32)
    right_db = tl.zeros([rest], tl.float32)
    right_total = tl.zeros([rest], tl.float32)
    next_left = _load(inputs, program, left, columns, True, terms, has_residual)
    next_right = _load(inputs, program, right, columns, full, terms, has_residual)
    for row in range(program, rows, programs):
        # the next row is on its way while this one is computed
        now_left, now_right = next_left, next_right
        following = tl.minimum(row + programs, rows - 1)
        next_left = _load(inputs, following, left, columns, True, terms, has_residual)
        next_right = _load(inputs, following, right, columns, full, terms, has_residual)
        middle = tl.load(mean + row) if has_mean else 0.0
        left_x, left_dy = _widened(now_left, middle, left < columns, True, terms)
        right_x, right_dy = _widened(now_right, middle, inside, full, terms)
        if has_mean:
            by = tl.load(inv + row)
        else:
            squares = tl.sum(left_x * left_x, 0) + tl.sum(right_x * right_x, 0)
            by = tl.rsqrt(squares / columns + epsilon)
        left_x, right_x = left_x * by, right_x * by
        left_g, right_g = left_dy * left_scale, right_dy * right_scale
        product = (tl.sum(left_g * left_x, 0) + tl.sum(right_g * right_x, 0)) / columns
        left_dx, right_dx = left_g - left_x * product, right_g - right_x * product
        if has_mean:
            average = (tl.sum(left_g, 0) + tl.sum(right_g, 0)) / columns
            left_dx, right_dx = left_dx - average, right_dx - average
        left_out = _store(
            left_dx * by,
            now_left[1],
            outputs,
            draw,
            row,
            left,
            columns,
            True,
            has_residual,
            has_dropout,
        )
        right_out = _store(
            right_dx * by,
            now_right[1],
            outputs,
            draw,
            row,
            right,
            columns,
            full,
            has_residual,
            has_dropout,
        )
        if has_dropout:
            left_total += left_out
            right_total += right_out
        left_dscale += left_dy * left_x
        right_dscale += right_dy * right_x
        left_db += left_dy
        right_db += right_dy
    at = sums + program * columns
    between = programs * columns
    tl.store(at + left, left_dscale)
    tl.store(at + right, right_dscale, mask=inside)
    tl.store(at + between + left, left_db)
    tl.store(at + between + right, right_db, mask=inside)
    tl.store(at + 2 * between + left, left_total)
    tl.store(at + 2 * between + right, right_total, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _add_programs(sums, total, programs, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    """total (3, columns) = Σ programs of sums (3, programs, columns)"""
    lanes = tl.program_id(0) * 16 + tl.arange(0, 16)[None, :]
    row = tl.arange(0, 64)[:, None]
    inside = lanes < columns
    added = tl.zeros([64, 16], tl.float32)
    at = sums + tl.program_id(1) * programs * columns + lanes
    for first in range(0, programs, 64):
        mask = (first + row < programs) & inside
        added += tl.load(at + (first + row) * columns, mask=mask, other=0.0)
    tl.store(total + tl.program_id(1) * columns + lanes, tl.sum(added, 0)[None, :], mask=inside)


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
    dx = torch.empty_like(x)
    masked = x.new_empty((0, columns)) if key is None else torch.empty_like(x)
    if not rows:
        return dx, masked, torch.zeros((3, columns), dtype=torch.float32, device=x.device)
    wide = triton.next_power_of_2(triton.cdiv(columns, 2))
    rest = triton.next_power_of_2(max(1, columns - wide))
    warps = max(1, min(16, triton.next_power_of_2((wide + rest) // _BY_WARP)))
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    programs = min(processors * triton.cdiv(_NUMBERS, wide + rest), rows)
    sums = torch.empty((3, programs, columns), dtype=torch.float32, device=x.device)
    total = torch.empty((3, columns), dtype=torch.float32, device=x.device)
    given = [*terms, *[terms[0]] * (4 - len(terms))]
    grid: Any = (programs,)
    _rows[grid](
        *(x, scale, x if mean is None else mean, x if inv is None else inv),
        *(x if residual is None else residual, x if key is None else key, *given),
        *(dx, masked, sums, rows, epsilon, own, _least_hash(ratio), factor),
        columns=columns,
        terms=len(terms),
        has_mean=mean is not None,
        has_residual=residual is not None,
        has_dropout=key is not None,
        wide=wide,
        rest=rest,
        num_warps=warps,
    )
    grid = (triton.cdiv(columns, 16), 3)
    _add_programs[grid](sums, total, programs, columns=columns)
    return dx, masked, total


def _least_hash(ratio: float) -> int:
    """h >= it where dropout's number (h >> 8) / 2^24 >= ratio, in float32."""
    return math.ceil(float(torch.tensor(ratio, dtype=torch.float32)) * 2**24) << 8
