"""Figures as PNG: marks are where the figure says, in their colors."""

from __future__ import annotations

import builtins
import io
from typing import Any

import pytest

from onward.errors import PackageMissing
from onward.runner.figures.figure import Box, Dot, Figure, Line, Words
from onward.runner.figures.png import png_bytes


def picture(*marks: Any) -> Any:
    image = pytest.importorskip("PIL.Image")
    return image.open(io.BytesIO(png_bytes(Figure(100, 60, marks))))


def colored(drawn: Any, color: tuple[int, int, int], box: tuple[int, int, int, int]) -> int:
    part = drawn.crop([2 * edge for edge in box])  # 2 pixels per unit
    return sum(
        part.getpixel((x, y)) == color for x in range(part.width) for y in range(part.height)
    )


def test_boxes_dots_and_lines_have_their_place_and_color() -> None:
    red, green, blue = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    drawn = picture(
        Box((10, 10), (10, 10), "#ff0000"),
        Dot((50, 15), 5, "#00ff00"),
        Line([(70, 15), (90, 15)], "#0000ff", 2),
        Line([(10, 50), (90, 50)], "#0000ff", 2, opacity=0.5),
    )
    assert drawn.size == (200, 120)
    assert colored(drawn, red, (0, 0, 100, 60)) == 400
    assert drawn.getpixel((100, 30)) == green and drawn.getpixel((160, 30)) == blue
    assert drawn.getpixel((100, 100)) == (128, 128, 255)


def test_dashed_lines_have_gaps() -> None:
    whole, dashed = (
        colored(picture(Line([(0, 30), (60, 30), (100, 30)], "#ff0000", 2, dashed=gaps)),
                (255, 0, 0), (0, 0, 100, 60))
        for gaps in (False, True)
    )  # fmt: skip
    assert dashed / whole == pytest.approx(7 / 12, abs=0.08)


def test_texts_are_at_their_anchor_and_upright_ones_go_up() -> None:
    black = (0, 0, 0)
    right = picture(Words((50, 30), "HHHH", "#000000"))
    left = picture(Words((50, 30), "HHHH", "#000000", "end"))
    up = picture(Words((50, 58), "HHHH", "#000000", upright=True))
    assert colored(right, black, (50, 0, 100, 60)) and not colored(right, black, (0, 0, 49, 60))
    assert colored(left, black, (0, 0, 50, 60)) and not colored(left, black, (51, 0, 100, 60))
    assert colored(up, black, (30, 0, 51, 40)) and not colored(up, black, (60, 0, 100, 60))


def test_without_pillow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def without(name: str, *args: Any, **keywords: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return load(name, *args, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(PackageMissing, match=r"Pillow.*\n.*onward\[images\], or write an .svg"):
        png_bytes(Figure(1, 1, []))
