"""The demo's learning curve: both lines are there."""

from __future__ import annotations

import pytest

from onward.runner.figures.figure import Line, Point
from onward.runner.learning_curve import LearningCurve, draw_learning_curve
from tests.runner.figures.marks import parsed


def lines(curve: LearningCurve) -> dict[str, list[Point]]:
    """The points of the named lines."""
    figure = draw_learning_curve(curve)
    parsed(figure)
    named = [mark for mark in figure.marks if isinstance(mark, Line) and mark.name]
    return {line.name: list(line.points) for line in named}


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
