"""Cases of rules/sampling.py."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from tests.gradients.case import Case, between, normal


def _sample(note: str, x: Any, grid: Any, **rest: Any) -> Case:
    options = {n: rest.pop(n) for n in ("ort", "autograd", "differences", "tolerance") if n in rest}
    feeds = {"x": x, "grid": grid}
    return Case(
        "GridSample", lambda op, x, grid: op.GridSample(x, grid, **rest), feeds, note, **options
    )


def _off_pixels(*shape: int, sizes: tuple[int, ...], low: float = -2.0) -> Any:
    """Points, some of them far outside, that lie at no pixel, and between no two, of any axis."""
    grid = between(low, -low, *shape)
    for axis, size in enumerate(reversed(sizes)):
        for length in (size, max(size - 1, 1)):
            at = (grid[..., axis] + 1) * length
            grid[..., axis] += np.where(np.abs(at - np.round(at)) < 0.1, 0.23 / length, 0.0)
    return grid


_X = normal(2, 3, 4, 5)
_GRID = _off_pixels(2, 3, 4, 2, sizes=(4, 5))

CASES = [
    *(
        _sample(
            f"{mode}, {padding}, {'corners aligned' if aligned else 'corners not aligned'}",
            _X,
            _GRID,
            mode=mode,
            padding_mode=padding,
            align_corners=aligned,
        )
        for mode, padding, aligned in product(
            ("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)
        )
    ),
    *(
        _sample(
            f"three axes, {mode}, {padding}, {aligned}",
            normal(2, 2, 3, 4, 2),
            _off_pixels(2, 2, 1, 3, 3, sizes=(3, 4, 2)),
            mode=mode,
            padding_mode=padding,
            align_corners=aligned,
        )
        for mode, padding, aligned in (
            ("linear", "zeros", 0),
            ("linear", "border", 1),
            ("linear", "reflection", 0),
            ("nearest", "zeros", 1),
            ("nearest", "reflection", 0),
        )
    ),
    _sample(
        "three axes, cubic",
        normal(1, 2, 3, 4, 2),
        _off_pixels(1, 2, 1, 3, 3, sizes=(3, 4, 2)),
        mode="cubic",
        ort=False,  # it has no cubic of three axes, and nothing of one
    ),
    _sample("one axis", normal(2, 3, 5), _off_pixels(2, 4, 1, sizes=(5,)), ort=False),
    _sample(
        "one pixel",
        normal(1, 2, 1, 1),
        _off_pixels(1, 2, 2, 2, sizes=(1, 1)),
        padding_mode="reflection",
        align_corners=1,
    ),
    Case(
        "AffineGrid",
        lambda op, theta: op.AffineGrid(theta, np.array([2, 3, 4, 5])),
        {"theta": normal(2, 2, 3)},
        fixed=("theta",),
    ),
    Case(
        "AffineGrid",
        lambda op, theta: op.AffineGrid(theta, np.array([2, 3, 4, 5]), align_corners=1),
        {"theta": normal(2, 2, 3)},
        "corners aligned",
        fixed=("theta",),
    ),
    Case(
        "AffineGrid",
        lambda op, theta: op.AffineGrid(theta, np.array([2, 1, 3, 4, 2])),
        {"theta": normal(2, 3, 4)},
        "three axes",
        fixed=("theta",),
    ),
    Case(
        "AffineGrid",
        lambda op, theta, size: op.AffineGrid(theta, size, align_corners=1),
        {"theta": normal(1, 2, 3), "size": np.array([1, 3, 4, 5])},
        "a size that is fed",
        fixed=("theta",),
    ),
]
