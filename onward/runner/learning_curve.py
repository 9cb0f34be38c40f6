"""A learning curve as an SVG picture: the loss at each step, the accuracy after each epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onward.graph.paths import writing

WIDTH, HEIGHT = 960, 540
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 880, 70, 470  # the frame
_TEXT, _GRID, _LOSS, _ACCURACY = "#3c3c43", "#e6e6ea", "#2e5ec4", "#d65c16"
_DECAY = 0.85  # how much of the running average stays from one step to the next

Point = tuple[float, float]  # x to the right, y down


@dataclass
class LearningCurve:
    """Losses and accuracies of a training."""

    losses: list[float] = field(default_factory=list)  # of each step
    accuracies: list[tuple[int, float]] = field(default_factory=list)  # (after steps, 0 to 1)


def write_learning_curve(curve: LearningCurve, path: Path) -> None:
    """Write the picture as an SVG file."""
    with writing(path):
        path.write_text(draw_learning_curve(curve), "utf-8")


def draw_learning_curve(curve: LearningCurve) -> str:
    """The SVG text: the loss on the left axis, the accuracy on the right one."""
    steps = max(len(curve.losses), 1)
    top = ticks(max(curve.losses, default=1.0))[-1]
    losses = [_position(i, loss, steps, top) for i, loss in enumerate(curve.losses, 1)]
    averages = [_position(i, loss, steps, top) for i, loss in enumerate(smooth(curve.losses), 1)]
    accuracies = [_position(step, share, steps, 1.0) for step, share in curve.accuracies]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="16">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            *_axes(steps, top),
            _line(losses, _LOSS, 1, 'stroke-opacity="0.4"'),
            _line(averages, _LOSS, 2.6, 'id="loss"'),
            _line(accuracies, _ACCURACY, 2.6, 'id="accuracy"'),
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{_ACCURACY}"/>'
              for x, y in accuracies),
            *_legend(_LEFT, "training loss", _LOSS),
            *_legend(_LEFT + 200, "held-out accuracy", _ACCURACY),
            "</svg>\n",
        ]
    )  # fmt: skip


def ticks(highest: float, about: int = 5) -> list[float]:
    """Round numbers from 0 to the first that is not below the highest.

    >>> ticks(2.4)
    [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    >>> ticks(555)
    [0.0, 200.0, 400.0, 600.0]
    """
    if not (math.isfinite(highest) and highest > 0):
        highest = 1.0
    raw = highest / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    count = math.ceil(highest / step - 1e-9)
    return [round(i * step, 10) for i in range(count + 1)]


def smooth(numbers: Sequence[float]) -> list[float]:
    """Exponential moving averages; the first is the first number itself."""
    averages: list[float] = []
    weight = total = 0.0
    for number in numbers:
        weight = _DECAY * weight + 1.0
        total = _DECAY * total + number
        averages.append(total / weight)
    return averages


def _position(step: float, height: float, steps: int, top: float) -> Point:
    """Where a number is in the picture; one above the frame stays at its edge."""
    share = min(max(height / top, 0.0), 1.0) if math.isfinite(height) else 1.0
    return _LEFT + (_RIGHT - _LEFT) * step / steps, _BOTTOM - (_BOTTOM - _TOP) * share


def _axes(steps: int, top: float) -> Iterator[str]:
    for number in ticks(top):
        _, y = _position(0, number, steps, top)
        yield _line([(_LEFT, y), (_RIGHT, y)], _GRID, 1)
        yield _text((_LEFT - 12, y + 6), f"{number:.6g}", _LOSS, "end")
    for percent in range(0, 101, 20):
        _, y = _position(0, percent / 100, steps, 1.0)
        yield _line([(_RIGHT, y), (_RIGHT + 6, y)], _ACCURACY, 1)
        yield _text((_RIGHT + 12, y + 6), f"{percent}%", _ACCURACY)
    for number in ticks(steps, 6):
        if number <= steps:
            x, _ = _position(number, 0.0, steps, 1.0)
            yield _line([(x, _BOTTOM), (x, _BOTTOM + 6)], _TEXT, 1)
            yield _text((x, _BOTTOM + 26), f"{number:.6g}", _TEXT, "middle")
    yield _text(((_LEFT + _RIGHT) / 2, HEIGHT - 16), "step", _TEXT, "middle")
    yield _line([(_LEFT, _BOTTOM), (_RIGHT, _BOTTOM)], _TEXT, 1)
    yield _line([(_LEFT, _TOP), (_LEFT, _BOTTOM)], _LOSS, 1)
    yield _line([(_RIGHT, _TOP), (_RIGHT, _BOTTOM)], _ACCURACY, 1)


def _legend(x: float, words: str, color: str) -> Iterator[str]:
    yield _line([(x, 34), (x + 28, 34)], color, 4)
    yield _text((x + 40, 40), words, _TEXT)


def _line(points: Sequence[Point], color: str, width: float, attributes: str = "") -> str:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{joined}" fill="none" stroke="{color}" stroke-width="{width}" '
        f'stroke-linejoin="round" {attributes}/>'
    )


def _text(at: Point, words: str, color: str, anchor: str = "start") -> str:
    x, y = at
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}">{words}</text>'
