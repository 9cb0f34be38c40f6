"""The learning curve: its axes fit the numbers, and both lines are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from onward.cli.learning_curve import HEIGHT, WIDTH, Curve, draw_curve, smooth, ticks

BLUE, ORANGE = (46, 94, 196), (214, 92, 22)


def drawn(curve: Curve, folder: Path) -> Any:
    draw_curve(curve, folder / "curve.png")
    pixels = np.asarray(Image.open(folder / "curve.png"))
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    return pixels[80:460, 90:870]  # inside the frame


def count(pixels: Any, colour: tuple[int, int, int]) -> int:
    return int((pixels == colour).all(2).sum())


def test_both_lines_are_drawn(tmp_path: Path) -> None:
    losses = [2.4 * 0.99**i for i in range(200)]
    pixels = drawn(Curve(losses, [(0, 0.1), (100, 0.8), (200, 0.95)]), tmp_path)
    assert count(pixels, BLUE) > 500 and count(pixels, ORANGE) > 500


def test_a_falling_loss_goes_down_and_a_rising_accuracy_up(tmp_path: Path) -> None:
    pixels = drawn(Curve([2.0, 1.5, 1.0, 0.5], [(0, 0.1), (4, 0.9)]), tmp_path)
    for colour, goes_down in ((BLUE, True), (ORANGE, False)):
        rows, columns = np.nonzero((pixels == colour).all(2))
        left, right = rows[columns.argmin()], rows[columns.argmax()]
        assert (left < right) == goes_down


@pytest.mark.parametrize("losses", [[], [2.0], [0.0, 0.0], [1.0, float("nan"), float("inf")]])
def test_a_run_that_ended_at_once_has_a_picture_too(losses: list[float], tmp_path: Path) -> None:
    drawn(Curve(losses, [(0, 0.1)] if losses else []), tmp_path)


@pytest.mark.parametrize("highest", [1e-6, 0.03, 0.99, 1.0, 2.5, 7.1, 10.0, 43.0, 555.0, 12345.0])
def test_ticks_are_few_and_reach_the_highest_number(highest: float) -> None:
    found = ticks(highest)
    assert found[0] == 0 and found[-2] < highest <= found[-1] * (1 + 1e-9)
    assert 3 <= len(found) <= 7


def test_averages_start_with_the_first_number_and_stay_between(tmp_path: Path) -> None:
    averages = smooth([3.0, 1.0, 1.0, 1.0])
    assert averages[0] == 3.0
    assert averages == sorted(averages, reverse=True) and averages[-1] > 1.0
