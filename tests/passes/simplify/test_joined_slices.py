"""Sums of padded parts become a Concat."""

from __future__ import annotations

from typing import Any

import pytest

from onward.graph.builder import OpBuilder
from onward.passes.pipelines import TRAINING
from tests.passes.one_graph import Build, built, left_after


def padded(op: OpBuilder, x: Any, begin: int, end: int, axis: int = 0) -> Any:
    return op.Pad(x, [begin, end], None, [axis])


def three(op: OpBuilder, a: Any, b: Any, c: Any) -> Any:
    return op.Sum(padded(op, b, 2, 2), padded(op, c, 4, 0), padded(op, a, 0, 4))


def two(op: OpBuilder, a: Any, b: Any, c: Any) -> Any:
    return op.Add(op.Pad(a, [0, 0, 2, 0]), padded(op, b, 2, 0)), c


def test_parts_that_fill_the_whole_are_joined_in_order() -> None:
    assert left_after(built(three, (2, 3), (2, 3), (2, 3)), TRAINING) == ["Concat"]
    assert left_after(built(two, (2, 3), (2, 3), (2, 3)), TRAINING) == ["Concat", "Identity"]


def with_a_gap(op: OpBuilder, a: Any, b: Any, c: Any) -> Any:
    return op.Sum(padded(op, a, 1, 3, 1), padded(op, b, 4, 0, -1), c)


def test_other_parts_stay_padded_and_summed() -> None:
    model = built(with_a_gap, (2, 3), (2, 3), (2, 7))
    assert left_after(model, TRAINING) == ["Add", "Concat", "Pad"]


def two_rows(op: OpBuilder, a: Any, b: Any, c: Any) -> Any:
    low = op.Add(padded(op, a, 0, 2), padded(op, b, 2, 0))
    return op.Sum(low, op.Relu(low), op.Pad(c, [0, 0, 2, 0]))


def test_a_sum_that_is_not_only_parts_keeps_the_rest() -> None:
    left = left_after(built(two_rows, (2, 3), (2, 3), (2, 3)), TRAINING)
    assert left == ["Concat", "Pad", "Relu", "Sum"]


def overlap(op: OpBuilder, a: Any, b: Any, c: Any) -> Any:
    return op.Add(padded(op, a, 0, 1), padded(op, b, 1, 0)), c


def other_axes(op: OpBuilder, a: Any, b: Any, c: Any) -> Any:
    return op.Add(op.Pad(a, [0, 0, 2, 3]), op.Pad(b, [2, 3, 0, 0])), c


def not_zeros(op: OpBuilder, a: Any, b: Any, c: Any) -> Any:
    return op.Add(op.Pad(a, [0, 0, 2, 0], 1.0), op.Pad(b, [2, 0, 0, 0])), c


def repeated(op: OpBuilder, a: Any, b: Any, c: Any) -> Any:
    return op.Add(op.Pad(a, [0, 0, 2, 0], mode="edge"), op.Pad(b, [2, 0, 0, 0])), c


def read_elsewhere(op: OpBuilder, a: Any, b: Any, c: Any) -> Any:
    first = op.Pad(a, [0, 0, 2, 0])
    return op.Add(first, op.Pad(b, [2, 0, 0, 0])), op.Relu(first), c


@pytest.mark.parametrize("build", [overlap, other_axes, not_zeros, repeated, read_elsewhere])
def test_other_sums_of_padded_values_stay(build: Build) -> None:
    assert "Concat" not in left_after(built(build, (2, 3), (2, 3), (2, 3)), TRAINING)


def of_unknown_batch(op: OpBuilder, a: Any, b: Any) -> Any:
    return op.Add(padded(op, a, 0, 3, 1), padded(op, b, 3, 0, 1))


def test_other_sizes_may_be_unknown() -> None:
    assert left_after(built(of_unknown_batch, ("n", 3), ("n", 3)), TRAINING) == ["Concat"]


def of_broadcasting_sizes(op: OpBuilder, a: Any, b: Any) -> Any:
    """(1, 2) + (4, 2), as the sum of an affine grid's columns: each row has the first part."""
    return op.Add(padded(op, a, 0, 1, 1), padded(op, b, 1, 0, 1))


@pytest.mark.parametrize("sizes", [((1, 1), (4, 1)), ((4, 1), (1, 1)), ((1, 1), ("n", 1))])
def test_parts_of_wholes_that_broadcast_stay_summed(sizes: Any) -> None:
    model = built(of_broadcasting_sizes, *sizes)
    assert left_after(model, TRAINING) == ["Add", "Pad", "Pad"]


def of_other_rank(op: OpBuilder, a: Any, b: Any) -> Any:
    return op.Add(op.Pad(a, [0, 1]), padded(op, b, 1, 0, 1))


def test_parts_of_wholes_of_other_rank_stay_summed() -> None:
    model = built(of_other_rank, (1,), (4, 1))
    assert left_after(model, TRAINING) == ["Add", "Pad", "Pad"]


def test_parts_of_two_unknown_sizes_stay_summed() -> None:
    model = built(of_unknown_batch, ("n", 3), ("m", 3))
    assert left_after(model, TRAINING) == ["Add", "Pad", "Pad"]
