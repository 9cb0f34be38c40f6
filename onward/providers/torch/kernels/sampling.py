"""Read a tensor between its elements, at points of any number of dimensions."""

from __future__ import annotations

from itertools import product
from math import prod

import torch
import torch.nn.functional as F

from onward.providers.torch.dtypes import Ints, Tensor

_ATEN_MODES = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}
CUBIC = -0.75  # Keys' coefficient, where ONNX leaves no choice


def cubic_weight(distance: Tensor, a: float) -> Tensor:
    """Keys' kernel: (a+2)|t|³ - (a+3)|t|² + 1 up to 1, a(|t|³ - 5|t|² + 8|t| - 4) up to 2."""
    t = distance.abs()
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = a * (((t - 5) * t + 8) * t - 4)
    return torch.where(t <= 1, near, torch.where(t < 2, far, 0.0))


def sample(x: Tensor, grid: Tensor, mode: str, padding_mode: str, align_corners: bool) -> Tensor:
    """y[n, c, p] = x[n, c] at the point grid[n, p], normalised to [-1, 1], last axis first.

    x: (batch, channel, sizes...); grid: (batch, points..., axes), of x's dtype.
    """
    axes = x.dim() - 2
    if axes == 2 or (axes == 3 and mode != "cubic"):
        return F.grid_sample(x, grid, _ATEN_MODES[mode], padding_mode, align_corners)
    sizes = list(x.shape[2:])
    taps = [
        _taps(grid[..., axes - 1 - axis], size, mode, padding_mode, align_corners)
        for axis, size in enumerate(sizes)
    ]
    flat, points = x.flatten(2), list(grid.shape[1:-1])
    y = torch.zeros([*x.shape[:2], prod(points)], dtype=x.dtype, device=x.device)
    for corner in product(*taps):  # one tap of each axis
        index, weight = _combined(corner, sizes)
        index = index.flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1)
        y = y + flat.gather(2, index) * weight.flatten(1).unsqueeze(1)
    return y.reshape(*x.shape[:2], *points)


def _combined(corner: tuple[tuple[Tensor, Tensor], ...], sizes: Ints) -> tuple[Tensor, Tensor]:
    """The flat index and the weight of one tap of each axis."""
    (index, weight), *rest = corner
    for (more, factor), size in zip(rest, sizes[1:]):
        index, weight = index * size + more, weight * factor
    return index, weight


def _taps(
    points: Tensor, size: int, mode: str, padding_mode: str, align_corners: bool
) -> list[tuple[Tensor, Tensor]]:
    """The taps of each point along one axis: (index, weight)."""
    if align_corners:
        low, high = 0.0, size - 1.0
        at = (points + 1) / 2 * (size - 1)
    else:
        low, high = -0.5, size - 0.5
        at = ((points + 1) * size - 1) / 2
    base = at.round() if mode == "nearest" else at.floor()
    distance = at - base
    if mode == "nearest":
        weights = {0: torch.ones_like(at)}
    elif mode == "linear":
        weights = {0: 1 - distance, 1: distance}
    else:
        weights = {tap: cubic_weight(distance - tap, CUBIC) for tap in (-1, 0, 1, 2)}
    return [
        _bounded(base + tap, weight, size, padding_mode, low, high)
        for tap, weight in weights.items()
    ]


def _bounded(
    at: Tensor, weight: Tensor, size: int, padding_mode: str, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """A tap's index moved inside, or its weight set to 0."""
    if padding_mode == "zeros":
        weight = torch.where((at >= 0) & (at <= size - 1), weight, 0.0)
    elif padding_mode == "reflection":
        at = _reflected(at, low, high)
    return at.clamp(0, size - 1).long(), weight


def _reflected(at: Tensor, low: float, high: float) -> Tensor:
    """Mirror at both borders until inside: a triangle wave with period 2(high - low)."""
    width = high - low
    if width == 0:  # align_corners on an axis of one element
        return torch.full_like(at, low)
    return width - (torch.remainder(at - low, 2 * width) - width).abs() + low
