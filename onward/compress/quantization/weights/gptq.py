"""GPTQ: round weights one input at a time, and let the inputs that follow make up for the error.

The error of a layer's output is tr(D H D^T), with D the change of the weights and H = X^T X the
second moments of its inputs. See "GPTQ: Accurate Post-Training Quantization for Generative
Pre-trained Transformers", Frantar et al., 2022.
"""

from __future__ import annotations

import numpy as np

from onward.compress.quantization.weights.blocks import Array, Blocks
from onward.compress.quantization.weights.scales import BlockGrid, find_grid, join_grids

_DAMPING = 0.01  # of the mean of H's diagonal
_INPUTS = 128  # inputs whose errors are passed on at once to those behind them
_WEIGHTS = 1 << 21  # weights that are rounded at a time
_LEAST_ROWS = 256  # rows that are rounded at a time


def round_by_gptq(w: Array, factor: Array, bits: int, block: int, scheme: str) -> Blocks:
    """Round a matrix so that the error of the outputs is small, not that of the weights.

    Args:
        w: (outputs, inputs)
        factor: `invert_factor` of X^T X, the moments of the layer's inputs
        bits, block, scheme: see Blocks
    """
    step = max(_LEAST_ROWS, _WEIGHTS // max(w.shape[1], 1))
    starts = range(0, len(w), step)  # no row depends on another one
    parts = [_round_rows(w[k : k + step], factor, bits, block, scheme) for k in starts]
    codes = np.concatenate([codes for codes, _ in parts])
    return join_grids([grid for _, grid in parts], codes, block)


def _round_rows(
    w: Array, factor: Array, bits: int, block: int, scheme: str
) -> tuple[Array, BlockGrid]:
    """The codes of some rows, (rows, inputs), and the grids of their blocks."""
    rest = np.array(w.T, np.float32, order="C")  # a copy, (inputs, rows)
    size = len(rest)
    importance = (1 / np.diag(factor) ** 2).astype(np.float32)
    codes = np.empty(rest.shape, np.uint8)
    grids: list[BlockGrid] = []
    step = max(_INPUTS, block)
    for start in range(0, size, step):
        end = min(start + step, size)
        errors = np.empty((end - start, rest.shape[1]), np.float32)
        for k in range(start, end):
            if k % block == 0:
                stop = min(k + block, size)
                grids.append(find_grid(rest[k:stop].T, bits, scheme, importance=importance[k:stop]))
            column, grid = rest[k][:, None], grids[-1]
            code = grid.encode(column)
            codes[k] = code[:, 0]
            error = (column - grid.decode(code))[:, 0] / factor[k, k]
            errors[k - start] = error
            rest[k + 1 : end] -= factor[k, k + 1 : end, None] * error
        rest[end:] -= factor[start:end, end:].T @ errors
    return np.ascontiguousarray(codes.T), _stack(grids)


def invert_factor(moments: Array) -> Array:
    """The upper Cholesky factor of the inverse of damped moments, in float32."""
    h = np.asarray(moments, np.float64).copy()
    diagonal = np.diag(h).copy()
    unused = diagonal <= 0  # inputs that were always 0
    diagonal[unused] = 1.0
    mean = float(diagonal[~unused].mean()) if not unused.all() else 1.0
    for damping in (_DAMPING, 10 * _DAMPING, 1.0):
        np.fill_diagonal(h, diagonal + damping * mean)
        try:
            reverse = np.linalg.cholesky(h[::-1, ::-1])  # h = u u^T with u upper triangular
        except np.linalg.LinAlgError:
            continue
        return np.linalg.inv(reverse[::-1, ::-1]).astype(np.float32)
    return np.eye(len(h), dtype=np.float32)


def _stack(grids: list[BlockGrid]) -> BlockGrid:
    """The grids of all blocks, (outputs, 1) each, as one of (outputs, blocks, 1)."""
    first = grids[0]
    zero = first.zero
    if not isinstance(zero, np.float32):
        zero = np.stack([np.asarray(grid.zero) for grid in grids], axis=1)
    offset = None
    if first.offset is not None:
        offset = np.stack([np.asarray(grid.offset) for grid in grids], axis=1)
    return BlockGrid(first.bits, np.stack([grid.scale for grid in grids], axis=1), zero, offset)
