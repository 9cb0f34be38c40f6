"""Learning rates: groups keep their ratio to the optimizer's own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.optimizers.learning_rates import LearningRates, is_state, rate_ratio

RATES = st.floats(0.0, 10.0)


@given(RATES, st.lists(RATES, min_size=1, max_size=4), st.lists(RATES, max_size=4))
def test_groups_keep_their_ratio_whatever_was_set_before(
    own: float, updates: list[float], later: list[float]
) -> None:
    rates = LearningRates(own, updates)
    for rate in later:
        rates.set(rate)
        assert rates.own == rate
        for first, found in zip(updates, rates.updates):
            ratio = rate_ratio(first, own)
            assert found == pytest.approx(first if ratio is None else rate * ratio)
    rates.set(own)
    assert rates.updates == updates


@given(RATES, st.lists(RATES, min_size=1, max_size=4), RATES, RATES)
def test_a_restored_state_continues_bit_for_bit(
    own: float, updates: list[float], before: float, after: float
) -> None:
    rates, again = LearningRates(own, updates), LearningRates(1.0, [1.0] * len(updates))
    rates.set(before)
    again.restore(json.loads(json.dumps(rates.state())))
    assert (again.own, again.updates) == (rates.own, rates.updates)
    rates.set(after)
    again.set(after)
    assert (again.own, again.updates) == (rates.own, rates.updates)


def test_a_group_has_a_constant_rate_if_the_own_rate_is_0() -> None:
    rates = LearningRates(0.0, [0.5, 0.0])
    rates.set(0.1)
    assert rates.updates == [0.5, 0.1]


def test_ratios_survive_an_own_rate_of_0() -> None:
    rates = LearningRates(0.1, [0.2, 0.0, 0.1])
    rates.set(0.0)
    assert rates.updates == [0.0, 0.0, 0.0]
    rates.set(1.0)
    assert rates.updates == [2.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("first", "saved", "own"),
    [([0.001, 0.1], [0.0005, 0.05], 0.05), ([0.2, 0.4], [0.1, 0.2], 0.05), ([0.0], [0.3], 0.3)],
)
def test_the_own_rate_is_restored_from_a_checkpoint_of_version_0_1(
    first: list[float], saved: list[float], own: float
) -> None:
    rates = LearningRates(0.1, first)
    rates.restore({"learning_rates": saved})
    assert rates.own == pytest.approx(own) and rates.updates == saved


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rates": None},
        {"learning_rates": []},
        {"learning_rates": ["a"]},
        {"learning_rate": None},
        {"initial_learning_rates": [0.1]},
        {"initial_learning_rates": [0.1, "a"]},
    ],
    ids=repr,
)
def test_is_state_is_false_for_other_objects(change: dict[str, Any]) -> None:
    state = LearningRates(0.1, [0.1]).state()
    assert is_state(state) and not is_state(state | change)
