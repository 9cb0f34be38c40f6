"""Curves of runs: panels, legend, colors; long and non-finite ones."""

from __future__ import annotations

import math

import pytest

from onward.runner.figures.curves import Panel, Series, draw_panels, draw_runs, smooth, thin
from onward.runner.figures.figure import Figure, Line
from tests.runner.figures.marks import parsed, texts

RUN = {
    "loss": [(1, 2.0), (2, 1.5), (3, 1.0)],
    "val_loss": [(3, 1.2)],
    "val_accuracy": [(3, 0.9)],
    "learning_rate": [(1, 1e-3), (3, 1e-4)],
}


def curves(figure: Figure) -> list[Line]:
    return [mark for mark in figure.marks if isinstance(mark, Line) and mark.width == 2.2]


def test_a_run_has_a_panel_per_column() -> None:
    figure = draw_runs({"one": RUN})
    parsed(figure)
    for title in ("loss", "accuracy", "learning_rate"):
        assert title in texts(figure)
    assert texts(figure)[-2:] == ["training", "validation"]
    trained, held_out, accuracy, rate = curves(figure)
    assert trained.color == rate.color != held_out.color == accuracy.color
    assert not any(line.dashed for line in curves(figure))


def test_several_runs_have_a_color_each() -> None:
    figure = draw_runs({"first": RUN, "second": RUN})
    assert texts(figure)[-2:] == ["first", "second"]
    colors = [line.color for line in curves(figure)]
    assert colors[0] == colors[1] != colors[2] == colors[3]
    assert [line.dashed for line in curves(figure)][:4] == [True, False, True, False]


def test_a_long_training_loss_is_smoothed() -> None:
    noisy = [(i, 1.0 + i % 2) for i in range(100)]
    figure = draw_runs({"one": {"loss": noisy, "other": noisy}})
    parsed(figure)
    smoothed, raw = curves(figure)
    assert len({y for _, y in raw.points}) == 2 < len({y for _, y in smoothed.points})


def test_higher_numbers_are_higher_and_later_ones_to_the_right() -> None:
    [line] = curves(draw_panels([Panel("loss", [Series("a", [(1, 2.0), (9, 1.0)])])]))
    (left, high), (right, low) = line.points
    assert left < right and high < low  # y points down


@pytest.mark.parametrize(
    "heights", [[], [2.0], [0.0, 0.0], [-1.0, -2.0], [1.0, math.nan, math.inf], [math.nan], [1e300]]
)
def test_short_and_non_finite_curves_are_drawn(heights: list[float]) -> None:
    figure = draw_runs({"one": {"loss": list(enumerate(heights))}})
    parsed(figure)
    assert len(curves(figure)[0].points) == len(heights)


def test_no_runs_are_an_empty_figure() -> None:
    parsed(draw_runs({}))


def test_many_runs_have_a_legend_of_several_lines() -> None:
    figure = draw_runs({f"a run with a long name, number {i}": RUN for i in range(12)})
    parsed(figure)
    assert sum(text.startswith("a run") for text in texts(figure)) == 12


def test_thinned_curves_keep_their_extremes() -> None:
    points = [(float(i), float(i % 7)) for i in range(10_000)]
    points[5000], points[6000] = (5000.0, 99.0), (6000.0, math.nan)
    kept = thin(points)
    assert len(kept) <= 1000 and (5000.0, 99.0) in kept
    assert any(math.isnan(y) for _, y in kept)
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)


def test_moving_averages_start_at_the_first_number() -> None:
    averages = smooth([3.0, 1.0, 1.0, 1.0])
    assert averages[0] == 3.0
    assert averages == sorted(averages, reverse=True) and averages[-1] > 1.0
