"""ROC curves: from one corner to the other, with a legend."""

from __future__ import annotations

import numpy as np

from onward.runner.figures.figure import Line
from onward.runner.figures.roc_plot import draw_roc
from onward.runner.metrics.ranking import roc_points
from tests.runner.figures.marks import parsed, texts


def test_curves_go_from_one_corner_to_the_other() -> None:
    labels = np.arange(3000) % 2
    scores = labels + np.random.default_rng(0).normal(size=3000)
    figure = draw_roc({"good": roc_points(scores, labels), "bad": roc_points(-scores, labels)})
    parsed(figure)
    good, bad = (m for m in figure.marks if isinstance(m, Line) and m.name in ("good", "bad"))
    for line in (good, bad):
        assert len(line.points) <= 1000
        assert np.allclose(line.points[0], (80, 550), atol=2)
        assert np.allclose(line.points[-1], (600, 30), atol=2)
    assert np.mean([y for _, y in good.points]) < np.mean([y for _, y in bad.points])
    assert texts(figure)[-2:] == ["good", "bad"]


def test_rates_that_are_not_defined_have_no_curve() -> None:
    figure = draw_roc({"none": roc_points(np.array([1.0, 2.0]), np.array([1, 1]))})
    parsed(figure)
    [line] = (mark for mark in figure.marks if isinstance(mark, Line) and mark.name == "none")
    assert line.points == []
