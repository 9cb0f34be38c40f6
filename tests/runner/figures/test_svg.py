"""Figures as SVG: every mark is an element, texts are escaped."""

from __future__ import annotations

from xml.etree import ElementTree

from onward.runner.figures.figure import Box, Dot, Figure, Line, Words
from onward.runner.figures.svg import svg_text
from tests.runner.figures.marks import SVG


def test_marks_are_elements_in_their_order() -> None:
    marks = [
        Line([(0, 0), (1, 2)], opacity=0.5, dashed=True, name="a"),
        Box((1, 1), (2, 2), "#ffffff", "tip"),
        Dot((1, 1), 2, "#ffffff"),
        Words((1, 1), "up", upright=True, size=9),
    ]
    _, line, box, dot, words = ElementTree.fromstring(svg_text(Figure(9, 9, marks)))
    assert [each.tag for each in (line, box, dot, words)] == [
        SVG + name for name in ("polyline", "rect", "circle", "text")
    ]
    assert (line.attrib["id"], line.attrib["points"]) == ("a", "0.0,0.0 1.0,2.0")
    assert line.attrib["stroke-opacity"] == "0.5" and "stroke-dasharray" in line.attrib
    assert box[0].text == "tip" and words.attrib["transform"] == "rotate(-90 1.0 1.0)"


def test_names_of_users_are_escaped() -> None:
    name = "<b> & 'c' \"d\" \x00"
    marks = [Words((0, 0), name), Line([], name=name), Box((0, 0), (1, 1), "#fff", name)]
    _, words, line, box = ElementTree.fromstring(svg_text(Figure(9, 9, marks)))
    expected = name.replace("\x00", "�")
    assert (words.text, line.attrib["id"], box[0].text) == (expected, expected, expected)
