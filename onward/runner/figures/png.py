"""Draw a figure as a PNG picture with Pillow."""

from __future__ import annotations

import io
import math
from itertools import pairwise
from typing import Any

from onward.errors import PackageMissing
from onward.runner.figures.figure import BACKGROUND, Box, Dot, Figure, Line, Point, Words
from onward.runner.figures.fonts import font_for

_SCALE = 2  # pixels per unit of the figure
_FINER = 2  # drawn at this many times the size and then reduced, which smooths edges
_DASH, _GAP = 7.0, 5.0


def png_bytes(figure: Figure) -> bytes:
    """The figure as the content of a PNG file, 2 pixels per unit; needs Pillow."""
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise PackageMissing(
            "Pillow, which writes PNG figures, is not installed\n"
            "install it with: pip install onward[images], or write an .svg file"
        ) from None
    finer = _SCALE * _FINER
    size = math.ceil(figure.width * finer), math.ceil(figure.height * finer)
    picture = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(picture)
    for mark in figure.marks:
        match mark:
            case Line():
                _draw_line(draw, mark, finer)
            case Box((x, y), (width, height), color):
                corners = (x * finer, y * finer, (x + width) * finer - 1, (y + height) * finer - 1)
                draw.rectangle(corners, fill=color)
            case Dot((x, y), r, color):
                circle = ((x - r) * finer, (y - r) * finer, (x + r) * finer, (y + r) * finer)
                draw.ellipse(circle, fill=color)
            case Words():
                _draw_words(picture, draw, mark, finer)
    target = io.BytesIO()
    reduced = picture.resize((size[0] // _FINER, size[1] // _FINER), Image.Resampling.BOX)
    reduced.save(target, "PNG", optimize=True)
    return target.getvalue()


def _draw_line(draw: Any, line: Line, finer: int) -> None:
    color = _mixed(line.color, line.opacity)
    width = max(round(line.width * finer), 1)
    pieces = _dashes(line.points) if line.dashed else [list(line.points)]
    for piece in pieces:
        if len(piece) > 1:
            scaled = [(x * finer, y * finer) for x, y in piece]
            draw.line(scaled, fill=color, width=width, joint="curve")


def _draw_words(picture: Any, draw: Any, words: Words, finer: int) -> None:
    from PIL import Image, ImageDraw

    font, text = font_for(words.text, words.size * finer)
    anchor = {"start": "l", "middle": "m", "end": "r"}[words.anchor] + "s"
    x, y = words.at[0] * finer, words.at[1] * finer
    if not words.upright:
        draw.text((x, y), text, fill=words.color, font=font, anchor=anchor)
        return
    # drawn on a square around its anchor, which is turned and then used as a mask
    half = math.ceil(font.getlength(text)) + math.ceil(words.size * finer)
    mask = Image.new("L", (2 * half, 2 * half), 0)
    ImageDraw.Draw(mask).text((half, half), text, fill=255, font=font, anchor=anchor)
    picture.paste(words.color, (round(x) - half, round(y) - half), mask.rotate(90))


def _mixed(color: str, opacity: float) -> str:
    """A color of the form #rrggbb over the white page."""
    parts = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(255 + (part - 255) * opacity):02x}" for part in parts)


def _dashes(points: Any) -> list[list[Point]]:
    """The pieces of a dashed line, each a list of points."""
    pieces: list[list[Point]] = []
    drawn, left, piece = True, _DASH, list(points[:1])
    for (x0, y0), (x1, y1) in pairwise(points):
        length, done = math.hypot(x1 - x0, y1 - y0), 0.0
        while length - done > left:
            done += left
            at = (x0 + (x1 - x0) * done / length, y0 + (y1 - y0) * done / length)
            if drawn:
                pieces.append([*piece, at])
            drawn, piece = not drawn, [at]
            left = _DASH if drawn else _GAP
        left -= length - done
        piece.append((x1, y1))
    return [*pieces, piece] if drawn else pieces
