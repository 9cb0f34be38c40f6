"""A figure as a value: lines, boxes, dots and texts at positions; x to the right, y down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]

TEXT, GRID, AXIS, BACKGROUND = "#3c3c43", "#e6e6ea", "#8e8e93", "#ffffff"
COLORS = (
    "#2e5ec4", "#d65c16", "#2a8f4e", "#a43fb5", "#c8102e",
    "#0e8fa3", "#8a6d1d", "#d6458a", "#5c6370", "#6d4bd8",
)  # fmt: skip
FONT_SIZE = 16.0
_LETTER_WIDTH = 0.56  # of a sans-serif font, of its size, on average


@dataclass(frozen=True)
class Line:
    """Points that are joined; `name` is its id in SVG."""

    points: Sequence[Point]
    color: str = TEXT
    width: float = 1.0
    opacity: float = 1.0
    dashed: bool = False
    name: str = ""


@dataclass(frozen=True)
class Box:
    """A filled rectangle; `tip` is shown when the mouse is over it."""

    corner: Point
    size: Point
    color: str
    tip: str = ""


@dataclass(frozen=True)
class Dot:
    """A filled circle."""

    center: Point
    radius: float
    color: str


@dataclass(frozen=True)
class Words:
    """One line of text; `anchor` is the part of it that is at `at`: start, middle or end."""

    at: Point  # on the base line
    text: str
    color: str = TEXT
    anchor: str = "start"
    size: float = FONT_SIZE
    upright: bool = False  # written upwards


Mark = Line | Box | Dot | Words


@dataclass(frozen=True)
class Figure:
    """A white page of a size, and what is drawn on it, in this order."""

    width: float
    height: float
    marks: Sequence[Mark]


def text_width(text: str, size: float = FONT_SIZE) -> float:
    """About how wide a text is."""
    return _LETTER_WIDTH * size * len(text)


def shorten(text: str, most: int) -> str:
    """A text of at most so many letters.

    >>> shorten("a long name of a class", 12)
    'a long name…'
    """
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
