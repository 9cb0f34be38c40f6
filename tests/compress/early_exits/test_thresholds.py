"""Thresholds: the lowest that keep the budget, with equal confidences kept together."""

from __future__ import annotations

import numpy as np

from onward.compress.early_exits.thresholds import NEVER, choose_thresholds

SURE = np.array([0.9, 0.8, 0.7, 0.6, 0.5], np.float32)
ALL_RIGHT = np.ones(5, np.bool_)


def test_everyone_leaves_where_the_exit_is_as_good() -> None:
    found = choose_thresholds([SURE], [ALL_RIGHT], ALL_RIGHT, [0.25], drop=0.0)
    assert (found.taken == 0).all() and found.lost == 0 and found.cost == 0.25


def test_the_budget_is_kept() -> None:
    right = np.array([True, True, False, True, False])
    none = choose_thresholds([SURE], [right], ALL_RIGHT, [0.25], drop=0.0)
    assert none.taken.tolist() == [0, 0, 1, 1, 1] and 0.7 < none.values[0] < 0.8
    one = choose_thresholds([SURE], [right], ALL_RIGHT, [0.25], drop=0.2)
    assert one.taken.tolist() == [0, 0, 0, 0, 1] and one.lost == 0.2


def test_rows_that_the_network_gets_wrong_are_not_lost() -> None:
    wrong = ~ALL_RIGHT
    found = choose_thresholds([SURE], [wrong], wrong, [0.25], drop=0.0)
    assert (found.taken == 0).all()


def test_equal_confidences_leave_together() -> None:
    same = np.full(5, 0.5, np.float32)
    right = np.array([True, True, True, True, False])
    found = choose_thresholds([same], [right], ALL_RIGHT, [0.25], drop=0.0)
    assert found.values == [NEVER] and (found.taken == 1).all()


def test_a_row_takes_the_first_exit_that_is_sure() -> None:
    early = np.array([0.9, 0.1, 0.1, 0.1, 0.1], np.float32)
    right = np.array([True, False, False, False, False])
    found = choose_thresholds([early, SURE], [right, ALL_RIGHT], ALL_RIGHT, [0.2, 0.6], drop=0.0)
    assert found.taken.tolist() == [0, 1, 1, 1, 1]
    assert np.isclose(found.cost, (0.2 + 4 * 0.6) / 5)
