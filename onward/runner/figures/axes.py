"""Axes of a plot: round numbers for ticks, and numbers to positions inside a frame."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from onward.runner.figures.figure import AXIS, GRID, TEXT, Line, Mark, Point, Words

_SMALL = 13.0  # font size of ticks


@dataclass(frozen=True)
class Frame:
    """A rectangle of the figure, and the numbers at its edges."""

    left: float
    right: float
    top: float
    bottom: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    powers: bool = False  # x is the exponent of a power of ten, shown as 1e-05

    def place(self, x: float, y: float) -> Point:
        """Where a point is drawn; beyond the frame at its edge, what is not finite at the top."""
        (x_low, x_high), (y_low, y_high) = self.x_range, self.y_range
        across = min(max((x - x_low) / (x_high - x_low), 0.0), 1.0)
        up = min(max((y - y_low) / (y_high - y_low), 0.0), 1.0) if math.isfinite(y) else 1.0
        return (
            self.left + (self.right - self.left) * across,
            self.bottom - (self.bottom - self.top) * up,
        )

    def draw(self, x_label: str = "", percent: bool = False) -> Iterator[Mark]:
        """The grid, the ticks with their numbers, and the label below."""
        for number in ticks(*self.y_range):
            if self.y_range[0] <= number <= self.y_range[1]:
                _, y = self.place(self.x_range[0], number)
                yield Line([(self.left, y), (self.right, y)], GRID)
                shown = f"{100 * number:.4g}%" if percent else format_tick(number)
                yield Words((self.left - 8, y + 5), shown, TEXT, "end", _SMALL)
        for number in ticks(*self.x_range, about=6):
            if self.x_range[0] <= number <= self.x_range[1]:
                x, _ = self.place(number, self.y_range[0])
                yield Line([(x, self.bottom), (x, self.bottom + 5)], AXIS)
                at = (x, self.bottom + 21)
                shown = f"{10.0**number:.0e}" if self.powers else format_tick(number)
                yield Words(at, shown, TEXT, "middle", _SMALL)
        yield Line([(self.left, self.top), (self.left, self.bottom)], AXIS)
        yield Line([(self.left, self.bottom), (self.right, self.bottom)], AXIS)
        if x_label:
            middle = (self.left + self.right) / 2
            yield Words((middle, self.bottom + 42), x_label, TEXT, "middle", _SMALL)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers, from the last that is not above `low` to the first not below `high`.

    >>> ticks(0, 2.4)
    [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    >>> ticks(0.91, 0.99)
    [0.9, 0.92, 0.94, 0.96, 0.98, 1.0]
    """
    if not (math.isfinite(low) and math.isfinite(high) and high > low):
        return ticks(low, low + (abs(low) or 1.0), about) if math.isfinite(low) else [0.0, 1.0]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(i * step, digits) for i in range(first, last + 1)]


def format_tick(number: float) -> str:
    """A number as text, for the label of an axis.

    >>> format_tick(25000.0), format_tick(0.5), format_tick(2e-05)
    ('25,000', '0.5', '2e-05')
    """
    if 1e4 <= abs(number) < 1e7 and number == int(number):
        return f"{number:,.0f}"
    return f"{number:.6g}"
