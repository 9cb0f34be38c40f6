"""A treemap: rectangles that fill a box, each with an area in proportion to its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rectangle:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


def treemap(sizes: Sequence[float], box: Rectangle) -> list[Rectangle]:
    """A box for each size, in the same order: half of the total on each side of a cut.

    >>> treemap([3, 1], Rectangle(0, 0, 8, 2))
    [Rectangle(x=0, y=0, width=6.0, height=2), Rectangle(x=6.0, y=0, width=2.0, height=2)]
    """
    if len(sizes) < 2:
        return [box] * len(sizes)
    total = sum(sizes)
    place, before = 0, 0.0
    while place < len(sizes) - 1 and (not place or before + sizes[place] / 2 < total / 2):
        before += sizes[place]
        place += 1
    share = before / total if total else 0.5
    if box.width >= box.height:
        width = box.width * share
        first = Rectangle(box.x, box.y, width, box.height)
        second = Rectangle(box.x + width, box.y, box.width - width, box.height)
    else:
        height = box.height * share
        first = Rectangle(box.x, box.y, box.width, height)
        second = Rectangle(box.x, box.y + height, box.width, box.height - height)
    return treemap(sizes[:place], first) + treemap(sizes[place:], second)
