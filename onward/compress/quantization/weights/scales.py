"""Choose the scale of each block of weights: by its largest weight, or by the least error.

grid = find_grid(blocks, bits, "symmetric", search=True, importance=importance)
codes = grid.encode(blocks)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.compress.quantization.weights.blocks import Array, Blocks, round_to_half

SCHEMES = ("symmetric", "zeros", "offsets")
_SHRINKS = tuple(1 - 0.025 * step for step in range(1, 21))  # parts of the range: clipping
_EXACT = 1e-10  # of the weights' squares
_SCALE_OF_ZEROS = np.float32(2**-14)  # the least that float16 holds in full precision
_COARSE = (0.93, 0.86, 0.78)  # the same, of large weights
_LARGE = 1 << 22  # weights of a matrix
_WEIGHTS = 1 << 17  # weights that are rounded at a time: what a processor's cache holds


@dataclass(frozen=True, eq=False)
class BlockGrid:
    """The numbers that a block of weights can take: (code - zero) * scale + offset.

    Each is an array of shape (..., 1); a grid without offsets has None.
    """

    bits: int
    scale: Array
    zero: Array | np.float32
    offset: Array | None = None

    def encode(self, w: Array) -> Array:
        """The nearest code of each weight, as floats."""
        shifted = w if self.offset is None else w - self.offset
        codes = shifted / self.scale + self.zero
        np.rint(codes, out=codes)
        return np.clip(codes, 0, (1 << self.bits) - 1, out=codes)

    def decode(self, codes: Array) -> Array:
        w = (codes - self.zero) * self.scale
        return w if self.offset is None else w + self.offset


def find_grid(
    w: Array,
    bits: int,
    scheme: str,
    *,
    search: bool = True,
    importance: Array | None = None,
    shrinks: Sequence[float] = _SHRINKS,
) -> BlockGrid:
    """The grid of each block: w is (..., weights of the block).

    Args:
        w: the blocks, float32
        bits: of a code
        scheme: one of SCHEMES
        search: try smaller ranges too, and keep the one of the least error; else the whole range
        importance: the weight of each error, as an array that broadcasts to w; None: all equal
        shrinks: the parts of the range that are tried
    """
    best = _make_grid(w, bits, scheme, 1.0)
    if not search:
        return best
    least = _error(w, best, importance)
    if least.sum() <= _EXACT * float((w * w).sum()):
        return best  # the weights have been rounded in this way before
    for shrink in shrinks:
        grid = _make_grid(w, bits, scheme, shrink)
        error = _error(w, grid, importance)
        better = error < least
        least = np.where(better, error, least)
        best = _merge(better, grid, best)
    fitted = _fit(w, best, importance)
    return _merge(_error(w, fitted, importance) < least, fitted, best)


def _make_grid(w: Array, bits: int, scheme: str, shrink: float) -> BlockGrid:
    steps, middle = (1 << bits) - 1, np.float32(1 << (bits - 1))
    low, high = w.min(-1, keepdims=True), w.max(-1, keepdims=True)
    if scheme == "symmetric":
        # the weight of the largest size becomes code 0, of which there is one more: as in Q4_0
        largest = np.where(-low >= high, low, high)
        return BlockGrid(bits, _nonzero(largest * np.float32(shrink / -float(middle))), middle)
    if scheme == "zeros":
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scale = _nonzero((high - low) * np.float32(shrink / steps))
        zero = np.clip(np.rint(-low * np.float32(shrink) / scale), 0, steps)
        return BlockGrid(bits, scale, zero)
    scale = _nonzero((high - low) * np.float32(shrink / steps))
    centre = (low + high) / 2
    offset = centre + scale * (middle - np.float32(steps / 2))
    return BlockGrid(bits, scale, middle, _half(offset))


def _nonzero(scale: Array) -> Array:
    """Scales for division; that of a block of zeros is small, as engines round with it."""
    return round_to_half(np.where(scale == 0, _SCALE_OF_ZEROS, scale))


def _half(offset: Array) -> Array:
    with np.errstate(over="ignore"):
        rounded = offset.astype(np.float16).astype(np.float32)
    return np.where(np.isfinite(rounded), rounded, offset)


def _error(w: Array, grid: BlockGrid, importance: Array | None) -> Array:
    exact = (w if grid.offset is None else w - grid.offset) / grid.scale  # in steps from the zero
    squares = np.rint(exact)
    np.maximum(squares, -grid.zero, out=squares)
    np.minimum(squares, np.float32((1 << grid.bits) - 1) - grid.zero, out=squares)
    squares -= exact
    squares *= squares
    if importance is not None:
        squares *= importance
    return np.asarray(squares.sum(-1, keepdims=True) * grid.scale**2)


def _merge(better: Array, new: BlockGrid, old: BlockGrid) -> BlockGrid:
    def pick(a: Any, b: Any) -> Any:
        return b if a is b else np.where(better, a, b)

    zero = old.zero if isinstance(old.zero, np.float32) else pick(new.zero, old.zero)
    offset = None if old.offset is None else pick(new.offset, old.offset)
    return BlockGrid(old.bits, pick(new.scale, old.scale), zero, offset)


def _fit(w: Array, grid: BlockGrid, importance: Array | None) -> BlockGrid:
    """The scale (and the offset) of the least squares for the codes that a grid gives."""
    x = grid.encode(w) - grid.zero
    r = np.float32(1) if importance is None else importance
    if grid.offset is None:
        scale = (r * x * w).sum(-1, keepdims=True) / np.maximum(
            (r * x * x).sum(-1, keepdims=True), np.float32(1e-30)
        )
        scale = np.where(scale == 0, grid.scale, scale)
        return BlockGrid(grid.bits, _nonzero(scale), grid.zero)
    total = np.sum(np.broadcast_to(r, w.shape), -1, keepdims=True) + np.float32(1e-30)
    mx, mw = (r * x).sum(-1, keepdims=True) / total, (r * w).sum(-1, keepdims=True) / total
    variance = (r * (x - mx) ** 2).sum(-1, keepdims=True)
    covariance = (r * (x - mx) * (w - mw)).sum(-1, keepdims=True)
    scale = np.where(variance > 0, covariance / np.maximum(variance, 1e-30), grid.scale)
    scale = _nonzero(np.where(scale == 0, grid.scale, scale).astype(np.float32))
    return BlockGrid(grid.bits, scale, grid.zero, _half((mw - scale * mx).astype(np.float32)))


def round_weights(
    w: Array,
    bits: int,
    block: int,
    scheme: str,
    *,
    search: bool = True,
    importance: Array | None = None,
) -> Blocks:
    """Round a matrix to the nearest codes: "rtn" without a search of the scales, "mse" with one.

    Args:
        w: (outputs, inputs), of any float type; it is read some rows at a time
        importance: (inputs,): the mean square of each input, if known
    """
    rows, size = w.shape
    weight = None if importance is None else _to_blocks(importance[None], block, fill=0.0)
    step = max(1, _WEIGHTS // max(size, 1))
    shrinks = _COARSE if rows * size > _LARGE else _SHRINKS
    parts = []
    for start in range(0, rows, step):
        chunk = np.asarray(w[start : start + step], np.float32)
        blocks = _to_blocks(chunk, block)
        grid = find_grid(blocks, bits, scheme, search=search, importance=weight, shrinks=shrinks)
        codes = grid.encode(blocks).astype(np.uint8).reshape(len(chunk), -1)[:, :size]
        parts.append((codes, grid))
    return join_grids([grid for _, grid in parts], np.concatenate([c for c, _ in parts]), block)


def join_grids(grids: list[BlockGrid], codes: Array, block: int) -> Blocks:
    """Codes (outputs, inputs) with the grids of their rows: each (rows, blocks, 1)."""
    first = grids[0]
    zeros = None
    if not isinstance(first.zero, np.float32):
        zeros = np.concatenate([np.asarray(grid.zero)[..., 0] for grid in grids]).astype(np.uint8)
    offsets = None
    if first.offset is not None:
        offsets = np.concatenate([np.asarray(grid.offset)[..., 0] for grid in grids])
    return Blocks(
        bits=first.bits,
        block=block,
        codes=codes,
        scales=np.concatenate([grid.scale[..., 0] for grid in grids]).astype(np.float32),
        zeros=zeros,
        offsets=offsets,
    )


def _to_blocks(w: Array, block: int, fill: float | None = None) -> Array:
    """(rows, inputs) to (rows, blocks, block); the last block repeats its last weight."""
    rest = -w.shape[1] % block
    if rest:
        tail = w[:, -1:] if fill is None else np.full_like(w[:, -1:], fill)
        w = np.concatenate([w, np.repeat(tail, rest, axis=1)], axis=1)
    return w.reshape(len(w), -1, block)
