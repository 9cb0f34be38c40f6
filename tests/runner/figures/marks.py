"""Read back what a figure draws."""

from __future__ import annotations

from xml.etree import ElementTree

from onward.runner.figures.figure import Figure, Line, Words
from onward.runner.figures.svg import svg_text

SVG = "{http://www.w3.org/2000/svg}"


def texts(figure: Figure) -> list[str]:
    return [mark.text for mark in figure.marks if isinstance(mark, Words)]


def parsed(figure: Figure) -> ElementTree.Element:
    """The SVG's root, whose lines are all inside of the page."""
    root = ElementTree.fromstring(svg_text(figure))
    assert root.attrib["viewBox"] == f"0 0 {figure.width:g} {figure.height:g}"
    for mark in figure.marks:
        if isinstance(mark, Line):
            assert all(0 <= x <= figure.width and 0 <= y <= figure.height for x, y in mark.points)
        if isinstance(mark, Words):
            assert 0 <= mark.at[0] <= figure.width and 0 <= mark.at[1] <= figure.height
    return root
