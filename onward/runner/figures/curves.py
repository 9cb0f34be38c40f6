"""Curves over the steps of one or several runs: losses, metrics, learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onward.runner.figures.axes import Frame, ticks
from onward.runner.figures.figure import (
    COLORS,
    TEXT,
    Dot,
    Figure,
    Line,
    Mark,
    Point,
    Words,
    shorten,
    text_width,
)

WIDTH = 960.0
LOSS = "loss"  # the column whose training curve is smoothed: it is of one batch per point
VALIDATION = "val_"  # how columns of numbers on held-out data begin
_PANEL = 300.0  # its height, title and ticks included
_MOST_POINTS = 1000  # more are not visible
_FEW_POINTS = 40  # up to which each is a dot
_DECAY = 0.85  # how much of the running average stays from one point to the next


@dataclass(frozen=True)
class Series:
    """One curve: points (step, number); `label` is its name in the legend.

    A smoothed one is a running average over the pale curve itself.
    """

    label: str
    points: Sequence[Point]
    smoothed: bool = False
    dashed: bool = False
    name: str = ""  # the line's id in SVG


@dataclass(frozen=True)
class Panel:
    """Curves over the same axes."""

    title: str
    series: Sequence[Series]
    percent: bool = False  # numbers from 0 to 1, shown as 0% to 100%


def draw_runs(runs: Mapping[str, Mapping[str, Sequence[Point]]], x_label: str = "step") -> Figure:
    """Columns of numbers of one or several runs, one panel per column.

    `runs` is the name of each run to its columns, a column to points (step, number). A column
    "val_loss" is drawn in the panel of "loss": of one run in another color, of several as the
    solid line, while the training's is dashed.

    >>> figure = draw_runs({"first": {"loss": [(1, 2.0), (2, 1.0)], "val_loss": [(2, 1.5)]}})
    >>> [mark.text for mark in figure.marks if isinstance(mark, Words)][-1]
    'validation'
    """
    titles = dict.fromkeys(
        column.removeprefix(VALIDATION) for columns in runs.values() for column in columns
    )
    panels = []
    for title in titles:
        series = []
        for run, columns in runs.items():
            trained, held_out = columns.get(title), columns.get(VALIDATION + title)
            both = trained is not None and held_out is not None
            one = len(runs) == 1
            if trained is not None:
                label = "training" if one else run
                noisy = title == LOSS and len(trained) > _FEW_POINTS
                series.append(Series(label, trained, noisy, dashed=both and not one))
            if held_out is not None:
                series.append(Series("validation" if one else run, held_out))
        panels.append(Panel(title, series))
    return draw_panels(panels, x_label)


def draw_panels(panels: Sequence[Panel], x_label: str = "step") -> Figure:
    """Panels below each other, or in two columns if there are more than two, and a legend."""
    labels = dict.fromkeys(each.label for panel in panels for each in panel.series)
    colors = {label: COLORS[i % len(COLORS)] for i, label in enumerate(labels)}
    legend, top = _legend(colors)
    across = 1 if len(panels) <= 2 else 2
    marks: list[Mark] = []
    for i, panel in enumerate(panels):
        left, up = WIDTH / across * (i % across), top + _PANEL * (i // across)
        marks += _panel(panel, left, left + WIDTH / across, up, x_label, colors)
    height = top + _PANEL * math.ceil(len(panels) / across)
    return Figure(WIDTH, height, [*marks, *legend])


def smooth(numbers: Iterable[float]) -> list[float]:
    """Exponential moving averages; the first is the first number itself."""
    averages: list[float] = []
    weight = total = 0.0
    for number in numbers:
        weight = _DECAY * weight + 1.0
        total = _DECAY * total + number
        averages.append(total / weight)
    return averages


def thin(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """Points of about the same curve: of each part, the lowest and the highest in their order.

    >>> thin([(0, 5), (1, 9), (2, 1), (3, 4)], most=2)
    [(1, 9), (2, 1)]
    """
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / (most / 2))
    kept = []
    for start in range(0, len(points), size):
        part = range(start, min(start + size, len(points)))
        heights = {i: points[i][1] if math.isfinite(points[i][1]) else math.inf for i in part}
        ends = {min(part, key=heights.__getitem__), max(part, key=heights.__getitem__)}
        kept += [points[i] for i in sorted(ends)]
    return kept


def _panel(
    panel: Panel, left: float, right: float, top: float, x_label: str, colors: Mapping[str, str]
) -> Iterator[Mark]:
    points = [point for series in panel.series for point in series.points]
    finite = [y for _, y in points if math.isfinite(y)]
    y_range = (0.0, 1.0) if panel.percent else _round_range(finite)
    steps = [x for x, _ in points] or [0.0, 1.0]
    x_range = (min(*steps, 0.0), max(max(steps), min(steps) + 1.0))
    frame = Frame(left + 80, right - 30, top + 36, top + _PANEL - 56, x_range, y_range)
    yield Words((frame.left, top + 22), panel.title)
    yield from frame.draw(x_label, panel.percent)
    for series in panel.series:
        yield from _curve(series, frame, colors[series.label])


def _curve(series: Series, frame: Frame, color: str) -> Iterator[Mark]:
    line = series.points
    if series.smoothed:
        yield Line([frame.place(*point) for point in thin(line)], color, 1.0, 0.4)
        line = [(x, mean) for (x, _), mean in zip(line, smooth(y for _, y in line))]
    placed = [frame.place(*point) for point in thin(line)]
    yield Line(placed, color, 2.2, dashed=series.dashed, name=series.name)
    if len(placed) <= _FEW_POINTS:
        yield from (Dot(point, 3.0, color) for point in placed)


def _round_range(numbers: Sequence[float]) -> tuple[float, float]:
    """Round numbers around all; from 0 where that does not flatten the curves."""
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    low = 0.0 if 0 <= low < 0.6 * high or low == high else low
    found = ticks(low, high) if low < high else ticks(0.0, abs(high) or 1.0)
    return min(found[0], low), max(found[-1], high)


def _legend(colors: Mapping[str, str]) -> tuple[list[Mark], float]:
    """The legend's marks, in as many lines as it needs, and where it ends."""
    marks: list[Mark] = []
    x, y = 80.0, 28.0
    for label, color in colors.items():
        words = shorten(label, 40)
        width = 40 + text_width(words) + 24
        if x > 80 and x + width > WIDTH:
            x, y = 80.0, y + 26
        marks += [Line([(x, y - 5), (x + 28, y - 5)], color, 4.0), Words((x + 36, y), words, TEXT)]
        x += width
    return marks, y + 14
