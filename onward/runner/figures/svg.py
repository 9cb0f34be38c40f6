"""Write a figure as SVG text."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

from onward.runner.figures.figure import BACKGROUND, FONT_SIZE, Box, Dot, Figure, Line, Mark, Words

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def svg_text(figure: Figure) -> str:
    """The figure as the text of an SVG file, which needs no other file.

    >>> svg_text(Figure(8, 4, [Dot((1, 2), 1, "red")])).splitlines()[2]
    '<circle cx="1.0" cy="2.0" r="1" fill="red"/>'
    """
    size = f"{figure.width:g} {figure.height:g}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
            f'font-family="sans-serif" font-size="{FONT_SIZE:g}">',
            f'<rect width="{figure.width:g}" height="{figure.height:g}" fill="{BACKGROUND}"/>',
            *map(_element, figure.marks),
            "</svg>\n",
        ]
    )


def _element(mark: Mark) -> str:
    match mark:
        case Line():
            return _line(mark)
        case Box((x, y), (width, height), color, tip):
            title = f"<title>{_text(tip)}</title>" if tip else ""
            return (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
                f'fill="{color}">{title}</rect>'
            )
        case Dot((x, y), radius, color):
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{color}"/>'
        case Words((x, y)):
            size = f' font-size="{mark.size:g}"' if mark.size != FONT_SIZE else ""
            turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if mark.upright else ""
            # else the middle of a cell would not react to the mouse
            through = ' pointer-events="none"'
            return (
                f'<text x="{x:.1f}" y="{y:.1f}" fill="{mark.color}" text-anchor="{mark.anchor}"'
                f"{size}{turn}{through}>{_text(mark.text)}</text>"
            )


def _line(line: Line) -> str:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in line.points)
    optional = (
        (f" id={quoteattr(_legal(line.name))}" if line.name else "")
        + (f' stroke-opacity="{line.opacity:g}"' if line.opacity < 1 else "")
        + (' stroke-dasharray="7 5"' if line.dashed else "")
    )
    return (
        f'<polyline points="{joined}" fill="none" stroke="{line.color}" '
        f'stroke-width="{line.width:g}" stroke-linejoin="round"{optional}/>'
    )


def _text(text: str) -> str:
    return escape(_legal(text))


def _legal(text: str) -> str:
    """The text with a replacement for each character that XML cannot hold."""
    return _NOT_IN_XML.sub("�", text)
