"""The learning curve as SVG: its axes fit the numbers, and both lines are there."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from onward.runner.learning_curve import (
    HEIGHT,
    WIDTH,
    LearningCurve,
    Point,
    draw_learning_curve,
    smooth,
    ticks,
)


def lines(curve: LearningCurve) -> dict[str, list[Point]]:
    """The points of the named lines, all inside the picture."""
    picture = ElementTree.fromstring(draw_learning_curve(curve))
    assert picture.attrib["viewBox"] == f"0 0 {WIDTH} {HEIGHT}"
    found: dict[str, list[Point]] = {}
    for line in picture.iter("{http://www.w3.org/2000/svg}polyline"):
        pairs = [pair.split(",") for pair in line.attrib["points"].split()]
        points = [(float(x), float(y)) for x, y in pairs]
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
        if "id" in line.attrib:
            found[line.attrib["id"]] = points
    return found


def test_both_lines_are_drawn() -> None:
    losses = [2.4 * 0.99**i for i in range(200)]
    drawn = lines(LearningCurve(losses, [(0, 0.1), (100, 0.8), (200, 0.95)]))
    assert len(drawn["loss"]) == 200 and len(drawn["accuracy"]) == 3


def test_falling_loss_goes_down_and_rising_accuracy_up() -> None:
    drawn = lines(LearningCurve([2.0, 1.5, 1.0, 0.5], [(0, 0.1), (4, 0.9)]))
    for name, goes_down in (("loss", True), ("accuracy", False)):
        (left, y_left), *_, (right, y_right) = drawn[name]
        assert left < right and (y_left < y_right) == goes_down  # y points down


@pytest.mark.parametrize("losses", [[], [2.0], [0.0, 0.0], [1.0, float("nan"), float("inf")]])
def test_short_and_non_finite_curves_are_drawn(losses: list[float]) -> None:
    drawn = lines(LearningCurve(losses, [(0, 0.1)] if losses else []))
    assert len(drawn["loss"]) == len(losses)


@pytest.mark.parametrize("highest", [1e-6, 0.03, 0.99, 1.0, 2.5, 7.1, 10.0, 43.0, 555.0, 12345.0])
def test_ticks_are_few_and_reach_the_highest_number(highest: float) -> None:
    found = ticks(highest)
    assert found[0] == 0 and found[-2] < highest <= found[-1] * (1 + 1e-9)
    assert 3 <= len(found) <= 7


def test_moving_averages_start_at_the_first_number() -> None:
    averages = smooth([3.0, 1.0, 1.0, 1.0])
    assert averages[0] == 3.0
    assert averages == sorted(averages, reverse=True) and averages[-1] > 1.0
