"""A learning curve as a picture: the loss at each step, the accuracy after each epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onward.cli.png import Colour, Picture, Point, text_width

WIDTH, HEIGHT = 960, 540
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 880, 70, 470  # the frame
_INK, _GRID = (60, 60, 67), (230, 230, 234)
_LOSS, _ACCURACY = (46, 94, 196), (214, 92, 22)
_SMOOTH = 0.85  # how much of the average loss stays from one step to the next


@dataclass
class Curve:
    """What was seen while learning."""

    losses: list[float] = field(default_factory=list)  # of each step
    accuracies: list[tuple[int, float]] = field(default_factory=list)  # (after steps, 0 to 1)


def draw_curve(curve: Curve, path: Path) -> None:
    """Write the picture, a PNG: the loss on the left axis, the accuracy on the right one."""
    picture = Picture(WIDTH, HEIGHT)
    steps = max(len(curve.losses), 1)
    top = ticks(max(curve.losses, default=1.0))[-1]
    _axes(picture, steps, top)
    losses = [_place(i + 1, loss, steps, top) for i, loss in enumerate(curve.losses)]
    average = zip(range(1, steps + 1), smooth(curve.losses))
    shares = [_place(step, share, steps, 1.0) for step, share in curve.accuracies]
    if losses:
        picture.line(losses, _LOSS, 1.0, opacity=0.4)
        picture.line([_place(i, loss, steps, top) for i, loss in average], _LOSS, 2.6)
    if shares:
        picture.line(shares, _ACCURACY, 2.6)
        for point in shares:
            picture.line([point], _ACCURACY, 7.0)
    _legend(picture, [("training loss", _LOSS), ("held-out accuracy", _ACCURACY)])
    picture.save(path)


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
    """Running averages that weigh the newest most; the first is the first number itself."""
    averages: list[float] = []
    weight = total = 0.0
    for number in numbers:
        weight = _SMOOTH * weight + 1.0
        total = _SMOOTH * total + number
        averages.append(total / weight)
    return averages


def _place(step: float, height: float, steps: int, top: float) -> Point:
    """Where a number is in the picture; what is above the frame stays at its edge."""
    share = min(max(height / top, 0.0), 1.0) if math.isfinite(height) else 1.0
    return _LEFT + (_RIGHT - _LEFT) * step / steps, _BOTTOM - (_BOTTOM - _TOP) * share


def _axes(picture: Picture, steps: int, top: float) -> None:
    for number in ticks(top):
        _, y = _place(0, number, steps, top)
        picture.box((_LEFT, y), (_RIGHT, y + 1), _GRID)
        picture.text((_LEFT - 12, y + 7), show_number(number), _LOSS, align=1.0)
    for percent in range(0, 101, 20):
        _, y = _place(0, percent / 100, steps, 1.0)
        picture.box((_RIGHT, y), (_RIGHT + 6, y + 1), _ACCURACY)
        picture.text((_RIGHT + 12, y + 7), f"{percent}%", _ACCURACY)
    for number in ticks(steps, 6):
        if number > steps:
            continue
        x, _ = _place(number, 0.0, steps, 1.0)
        picture.box((x, _BOTTOM), (x + 1, _BOTTOM + 6), _INK)
        picture.text((x, _BOTTOM + 26), show_number(number), _INK, align=0.5)
    picture.text(((_LEFT + _RIGHT) / 2, HEIGHT - 16), "step", _INK, align=0.5)
    picture.box((_LEFT, _BOTTOM), (_RIGHT, _BOTTOM + 1), _INK)
    picture.box((_LEFT, _TOP), (_LEFT + 1, _BOTTOM), _LOSS)
    picture.box((_RIGHT, _TOP), (_RIGHT + 1, _BOTTOM), _ACCURACY)


def _legend(picture: Picture, entries: Sequence[tuple[str, Colour]]) -> None:
    """What each line is, side by side above the frame."""
    x, y = float(_LEFT), 40.0
    for words, colour in entries:
        picture.line([(x, y - 7), (x + 28, y - 7)], colour, 4.0)
        picture.text((x + 40, y), words, _INK)
        x += 40 + text_width(words) + 40


def show_number(number: float) -> str:
    """
    >>> show_number(0.5), show_number(200.0), show_number(1e-7)
    ('0.5', '200', '1e-07')
    """
    return f"{number:.6g}"
