"""Draw efficiency over the number of processes, on an axis of powers of two."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onward.runner.figures.figure import (
    AXIS,
    COLORS,
    GRID,
    TEXT,
    Dot,
    Figure,
    Line,
    Mark,
    Point,
    Words,
)

_WIDTH, _PANEL, _LEGEND = 960.0, 340.0, 24.0
_LEFT, _RIGHT, _SMALL = 80.0, 30.0, 13.0


@dataclass(frozen=True)
class ScalingSeries:
    """A curve of (processes, share); measured ones are dots without a line."""

    label: str
    points: Sequence[Point]
    measured: bool = False
    dashed: bool = False
    color: int = 0  # number of the color


@dataclass(frozen=True)
class ScalingPanel:
    """Curves over the same axes."""

    title: str
    series: Sequence[ScalingSeries]
    most: int  # processes at the right end


def draw_scaling(panels: Sequence[ScalingPanel]) -> Figure:
    """Panels below each other: shares from 0 to 100 %, processes in powers of two."""
    marks: list[Mark] = []
    top = 0.0
    for panel in panels:
        marks += _panel(panel, top)
        top += _PANEL + _LEGEND * len(panel.series)
    return Figure(_WIDTH, top, marks)


def _panel(panel: ScalingPanel, top: float) -> Iterator[Mark]:
    upper, lower, last = top + 40.0, top + _PANEL - 60.0, math.log2(panel.most)

    def place(point: Point) -> Point:
        across = math.log2(point[0]) / last
        up = min(max(point[1], 0.0), 1.05)
        return (_LEFT + (_WIDTH - _LEFT - _RIGHT) * across, lower - (lower - upper) * up)

    yield Words((_LEFT, top + 22), panel.title)
    for tenth in range(0, 11, 2):
        _, y = place((1, tenth / 10))
        yield Line([(_LEFT, y), (_WIDTH - _RIGHT, y)], GRID)
        yield Words((_LEFT - 8, y + 5), f"{10 * tenth}%", TEXT, "end", _SMALL)
    for power in range(int(last) + 1):
        x, _ = place((1 << power, 0))
        yield Line([(x, lower), (x, lower + 5)], AXIS)
        yield Words((x, lower + 21), f"{1 << power:,}", TEXT, "middle", _SMALL)
    yield Line([(_LEFT, upper), (_LEFT, lower), (_WIDTH - _RIGHT, lower)], AXIS)
    yield Words(((_LEFT + _WIDTH) / 2, lower + 42), "processes", TEXT, "middle", _SMALL)
    for i, series in enumerate(panel.series):
        color = COLORS[series.color % len(COLORS)]
        placed = [place(point) for point in series.points]
        y = top + _PANEL + _LEGEND * i
        if series.measured:
            yield from (Dot(point, 5.0, color) for point in placed)
            yield Dot((_LEFT + 14, y - 5), 5.0, color)
        else:
            yield Line(placed, color, 2.2, dashed=series.dashed)
            yield Line([(_LEFT, y - 5), (_LEFT + 28, y - 5)], color, 3.0, dashed=series.dashed)
        yield Words((_LEFT + 38, y), series.label, TEXT, size=_SMALL)
