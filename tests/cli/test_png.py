"""The PNG writer: its files are PNGs, whoever reads them, and hold what was drawn."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from onward.cli.png import Picture, encode, text_width

RED, BLACK = (255, 0, 0), (0, 0, 0)


def test_another_reader_sees_the_same_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3)).astype(np.uint8)
    image = Image.open(BytesIO(encode(pixels)))
    assert image.format == "PNG" and image.mode == "RGB" and image.size == (5, 7)
    np.testing.assert_array_equal(np.asarray(image), pixels)


def test_a_picture_is_saved_as_it_was_drawn(tmp_path: Path) -> None:
    picture = Picture(20, 10)
    picture.box((2, 3), (6, 8), RED)
    picture.save(tmp_path / "a.png")
    seen = np.asarray(Image.open(tmp_path / "a.png"))
    assert (seen[3:8, 2:6] == RED).all() and (seen == 255).all(2).sum() == 200 - 20


def test_a_line_covers_what_is_near_it_and_nothing_else() -> None:
    picture = Picture(40, 40)
    picture.line([(5, 20), (35, 20)], BLACK, 4.0)
    dark = picture.pixels[..., 0] < 128
    assert dark[18:22, 6:34].all() and not dark[:16].any() and not dark[25:].any()


def test_a_line_may_leave_the_picture() -> None:
    picture = Picture(10, 10)
    picture.line([(-50, 5), (50, 5), (200, 300)], BLACK, 2.0)
    assert (picture.pixels[4:6, :, 0] < 128).all()


def test_one_point_is_a_dot() -> None:
    picture = Picture(20, 20)
    picture.line([(10, 10)], RED, 6.0)
    assert 20 < (picture.pixels[..., 1] < 128).sum() < 40


def test_words_take_their_width_and_stand_where_they_are_told() -> None:
    for align, left in ((0.0, 50), (0.5, 50 - text_width("08") // 2), (1.0, 50 - text_width("08"))):
        picture = Picture(100, 40)
        picture.text((50, 30), "08", BLACK, align=align)
        rows, columns = np.nonzero(picture.pixels[..., 0] < 128)
        assert columns.min() == left and columns.max() == left + text_width("08") - 1
        assert rows.max() == 29 and rows.min() == 16


def test_letters_without_a_picture_are_left_out() -> None:
    picture = Picture(60, 30)
    picture.text((5, 20), "\u2603 A", BLACK)
    assert (picture.pixels == 255).all()
