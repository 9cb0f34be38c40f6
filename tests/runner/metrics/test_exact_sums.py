"""Exact sums: against fractions, in any order and division."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.runner.metrics import exact_sums
from onward.runner.metrics.exact_sums import ExactSums

FINITE = st.floats(allow_nan=False, allow_infinity=False)
MODERATE = st.floats(-1e60, 1e60).filter(lambda x: x == 0 or abs(x) > 1e-60)


@settings(max_examples=60, deadline=None)
@given(st.lists(FINITE, max_size=30), st.integers(0, 30))
def test_totals_are_those_of_fractions(numbers: list[float], cut: int) -> None:
    sums = ExactSums()
    sums.add(numbers[cut:])
    sums.add(numbers[:cut])
    assert sums.total() == sum(map(Fraction, numbers))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(MODERATE, MODERATE, MODERATE), min_size=1, max_size=20))
def test_products_are_exact(rows: list[tuple[float, float, float]]) -> None:
    sums = ExactSums()
    sums.add_products(*np.array(rows).T)
    assert sums.total() == sum(prod(map(Fraction, row)) for row in rows)


def test_each_number_goes_to_its_cell() -> None:
    sums = ExactSums(3)
    sums.add([0.5, 1e300, 0.25, 0.0, -1e300], np.array([2, 0, 2, 1, 0]))
    assert sums.totals() == [0, 0, Fraction(3, 4)]


def test_totals_of_nothing_are_zero() -> None:
    sums = ExactSums(2)
    sums.add([])
    assert sums.totals() == [0, 0]


def test_many_numbers_are_added_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, cells = np.random.default_rng(0).normal(size=1000), np.arange(1000) % 3
    whole, parts = ExactSums(3), ExactSums(3)
    whole.add(numbers, cells)
    monkeypatch.setattr(exact_sums, "_ROWS", 70)
    parts.add(numbers, cells)
    assert whole.totals() == parts.totals()


def test_numbers_of_different_sizes_are_added_separately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact_sums, "_MOST_CELLS", 100)
    sums = ExactSums(3)
    sums.add([1e300, 0.5, -1e-300, 2.0], np.array([0, 1, 2, 1]))
    assert sums.totals() == [Fraction(1e300), Fraction(5, 2), Fraction(-1e-300)]
    assert sums.floats().tolist() == [1e300, 2.5, -1e-300]
