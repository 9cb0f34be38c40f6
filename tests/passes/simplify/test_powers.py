"""Small powers become products."""

from __future__ import annotations

from typing import Any

import pytest

from onward.graph.builder import OpBuilder
from onward.passes.pipelines import TRAINING
from tests.passes.one_graph import built, left_after


@pytest.mark.parametrize(("exponent", "left"), [(2.0, ["Mul"]), (3.0, ["Mul", "Mul"])])
def test_small_powers_become_products(exponent: float, left: list[str]) -> None:
    model = built(lambda op, x: op.Pow(x, exponent), (2, 3))
    assert left_after(model, TRAINING) == left


@pytest.mark.parametrize("exponent", [-1.0, 0.5, 2.5, 4.0])
def test_other_powers_stay(exponent: float) -> None:
    assert left_after(built(lambda op, x: op.Pow(x, exponent), (2, 3)), TRAINING) == ["Pow"]


def test_a_power_that_adds_an_axis_stays() -> None:
    def build(op: OpBuilder, x: Any) -> Any:
        return op.Pow(x, [[2.0]])

    assert "Pow" in left_after(built(build, (3,)), TRAINING)
