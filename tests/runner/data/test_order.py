"""Orders of rows: shuffled, class-balanced, split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.errors import DataError, OptionError
from onward.runner.data.order import class_balanced, positions, split
from onward.runner.data.row_random import random_bits, uniforms

seeds = st.integers(0, 2**63)
some_labels = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(np.array)


@given(seeds, st.integers(0, 1000), st.integers(0, 300))
@settings(max_examples=50, deadline=None)
def test_every_row_comes_exactly_once(seed: int, epoch: int, count: int) -> None:
    order = positions(seed, epoch, count)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(count))
    np.testing.assert_array_equal(order, positions(seed, epoch, count))


def test_epochs_and_seeds_give_different_orders() -> None:
    orders = [positions(seed, epoch, 50).tolist() for seed in (0, 1, -1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 6


def test_the_order_never_changes_between_versions() -> None:
    assert positions(0, 0, 8).tolist() == FROZEN


def test_random_numbers_are_uniform_and_streams_independent() -> None:
    one, other = uniforms(0, 0, np.arange(20_000)), uniforms(0, 0, np.arange(20_000), stream=1)
    assert one.min() >= 0 and one.max() < 1
    counts = np.histogram(one, 20, (0, 1))[0]
    assert abs(counts - 1000).max() < 150
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03
    assert len(np.unique(random_bits(0, 0, np.arange(20_000)))) == 20_000


@given(some_labels, seeds, st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_each_class_comes_equally_often(labels: np.ndarray, seed: int, epoch: int) -> None:
    chosen = class_balanced(labels, seed, epoch)
    counts = np.unique(labels[chosen], return_counts=True)[1]
    assert len(counts) == len(np.unique(labels)) and len(set(counts.tolist())) == 1
    for label in np.unique(labels):
        used = [int((chosen == row).sum()) for row in np.flatnonzero(labels == label)]
        assert max(used) - min(used) <= 1


def test_balanced_epochs_of_text_labels_differ() -> None:
    labels = np.array(["a"] * 8 + ["b"] * 2, object)
    assert class_balanced(labels, 0, 0).tolist() != class_balanced(labels, 0, 1).tolist()
    assert len(class_balanced(labels[:0], 0, 0)) == 0


@given(st.integers(0, 200), st.floats(0, 0.99), seeds)
@settings(max_examples=50, deadline=None)
def test_a_split_has_every_row_exactly_once(count: int, share: float, seed: int) -> None:
    train, validation = split(count, share, seed)
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(count))
    assert abs(len(validation) - count * share) <= 1


@given(some_labels, st.floats(0, 0.9), seeds)
@settings(max_examples=100, deadline=None)
def test_a_stratified_split_holds_out_each_class_in_proportion(
    labels: np.ndarray, share: float, seed: int
) -> None:
    train, validation = split(len(labels), share, seed, labels)
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(len(labels)))
    exact = len(validation) / len(labels)
    for label in np.unique(labels):
        size, held = int((labels == label).sum()), int((labels[validation] == label).sum())
        assert held < size  # a class without training rows cannot be learnt
        assert abs(held - size * max(exact, share)) <= 2


def test_a_split_refuses_wrong_shares_and_labels() -> None:
    with pytest.raises(OptionError, match="share must be a number from 0 to below 1"):
        split(10, 1.5, 0)
    with pytest.raises(DataError, match=r"10 rows needs one label for each, not .* \(3,\)"):
        split(10, 0.5, 0, np.zeros(3))


FROZEN = [3, 1, 2, 5, 7, 6, 0, 4]
