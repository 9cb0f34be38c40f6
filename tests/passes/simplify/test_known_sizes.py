"""Arithmetic on known sizes is replaced by constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.graph.builder import OpBuilder
from tests.passes.one_graph import Build, built, left_after


def size(op: OpBuilder, x: Any, axis: int) -> Any:
    """One size, as exporters write it."""
    return op.Unsqueeze(op.Gather(op.Shape(x), axis), [0])


def heads(op: OpBuilder, x: Any) -> Any:
    return op.Reshape(x, op.Concat(size(op, x, 0), size(op, x, 1), [4], [2], axis=0))


def merged(op: OpBuilder, x: Any) -> Any:
    first = op.Mul(size(op, x, 0), size(op, x, 1))
    return op.Reshape(x, op.Concat(first, size(op, x, 2), axis=0))


def sliced(op: OpBuilder, x: Any) -> Any:
    return op.Reshape(x, op.Concat(op.Slice(op.Shape(x), [0], [1]), [-1], axis=0))


def halved(op: OpBuilder, x: Any) -> Any:
    half = op.Div(op.Gather(op.Shape(x), 2), 2)
    return op.Slice(x, [0], op.Unsqueeze(half, [0]), [2])


def counted(op: OpBuilder, x: Any) -> Any:
    return op.Reshape(x, op.Unsqueeze(op.Size(x), [0]))


@pytest.mark.parametrize(
    ("build", "operator"),
    [
        (heads, "Reshape"),
        (merged, "Reshape"),
        (sliced, "Reshape"),
        (halved, "Slice"),
        (counted, "Reshape"),
    ],
)
def test_known_sizes_are_constants(build: Build, operator: str) -> None:
    assert left_after(built(lambda op, x: op.Relu(build(op, x)), (2, 3, 8)), 1) == [
        *sorted([operator, "Relu"])
    ]


@pytest.mark.parametrize("build", [heads, sliced, halved])
def test_named_sizes_are_copied_or_left_dynamic(build: Build) -> None:
    left = left_after(built(lambda op, x: op.Relu(build(op, x)), ("b", "t", 8)), 1)
    assert len(left) == 2


def test_two_unknown_sizes_are_computed() -> None:
    def swapped(op: OpBuilder, x: Any) -> Any:
        return op.Relu(op.Reshape(x, op.Concat(size(op, x, 1), size(op, x, 0), axis=0)))

    assert "Shape" in left_after(built(swapped, ("b", "t")), 1)


def test_dynamic_shapes_are_computed_at_run_time() -> None:
    assert left_after(built(lambda op, x: op.Shape(x), (None, 3)), 1) == ["Shape"]
    assert left_after(built(lambda op, x: op.Shape(op.NonZero(x), start=1), (2, 3)), 1) == [
        "NonZero",
        "Shape",
    ]


def test_a_part_of_a_shape_may_be_known() -> None:
    left = left_after(built(lambda op, x: op.Shape(x, start=1), (None, 3)), 1)
    assert left == ["Identity"]


def test_bounds_of_a_range_are_scalars() -> None:
    def counting(op: OpBuilder, x: Any) -> Any:
        end = op.Shape(x, start=0, end=1)
        return op.Add(op.Range(np.asarray(0), op.Squeeze(end), np.asarray(1)), op.Cast(x, to=7))

    assert "Shape" not in left_after(built(counting, (3,)), 1)


def test_shared_sums_are_evaluated_once() -> None:
    def tower(op: OpBuilder, x: Any) -> Any:
        size = op.Shape(x, start=0, end=1)
        for _ in range(30):
            size = op.Add(size, size)
        return op.Add(op.Cast(size, to=1), x)

    assert "Shape" in left_after(built(tower, ("n",)), 1)
