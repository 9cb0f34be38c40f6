"""Ticks are few round numbers; places are inside of the frame."""

from __future__ import annotations

import math

import pytest

from onward.runner.figures.axes import Frame, ticks


@pytest.mark.parametrize("highest", [1e-6, 0.03, 0.99, 1.0, 2.5, 7.1, 10.0, 43.0, 555.0, 12345.0])
def test_ticks_are_few_and_reach_the_highest_number(highest: float) -> None:
    found = ticks(0, highest)
    assert found[0] == 0 and found[-2] < highest <= found[-1] * (1 + 1e-9)
    assert 3 <= len(found) <= 7


@pytest.mark.parametrize(("low", "high"), [(-3, 2), (0.981, 0.983), (1e5, 1e5 + 1), (-2e-7, -1e-7)])
def test_ticks_surround_any_range(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found == sorted(set(found)) and 3 <= len(found) <= 8
    assert found[0] <= low + 1e-12 and found[-1] >= high - 1e-12


@pytest.mark.parametrize(
    ("low", "high"), [(2.0, 2.0), (0.0, 0.0), (math.nan, 1.0), (0.0, math.inf)]
)
def test_ticks_of_no_range_are_ticks(low: float, high: float) -> None:
    assert len(ticks(low, high)) >= 2


def test_places_stay_inside_of_the_frame() -> None:
    frame = Frame(10, 110, 20, 220, (0, 1), (0, 2))
    assert frame.place(0.5, 1) == (60, 120)
    assert frame.place(2, 5) == (110, 20)
    assert frame.place(0, math.nan) == frame.place(0, math.inf) == (10, 20)
