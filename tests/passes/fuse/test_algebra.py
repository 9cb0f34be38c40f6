"""Equal sums of products have equal polynomials, however they are written."""

from __future__ import annotations

from typing import Any

import pytest

from onward.graph.builder import OpBuilder
from onward.passes.fuse.algebra import operands, polynomial


@pytest.fixture
def op() -> OpBuilder:
    return OpBuilder()


@pytest.fixture
def x(op: OpBuilder) -> Any:
    return op.input("x", "float32", (2,))


def test_every_order_of_a_formula_is_one_polynomial(op: OpBuilder, x: Any) -> None:
    spellings = [
        op.Mul(op.Mul(x, 0.5), op.Add(x, 2.0)),
        op.Add(op.Mul(op.Pow(x, 2.0), 0.5), x),
        op.Div(op.Mul(op.Add(2.0, x), x), 2.0),
        op.Sub(op.Mul(0.5, op.Mul(x, x)), op.Neg(x)),
    ]
    for y in spellings:
        found = polynomial(y, [x])
        assert found is not None and found.equals({(1,): 1.0, (2,): 0.5})


def test_terms_that_cancel_are_removed(op: OpBuilder, x: Any) -> None:
    found = polynomial(op.Sub(op.Add(x, 1.0), x), [x])
    assert found is not None and found.equals({(0,): 1.0})


def test_two_symbols_have_separate_powers(op: OpBuilder, x: Any) -> None:
    s = op.Erf(x)
    found = polynomial(op.Mul(x, op.Add(s, 1.0)), [x, s])
    assert found is not None and found.equals({(1, 0): 1.0, (1, 1): 1.0})
    assert {node.op_type for node in found.nodes} == {"Mul", "Add"}


@pytest.mark.parametrize("spell", ["Div(1.0, x)", "Sqrt(x)", "Pow(x, 0.5)", "Pow(x, x)"])
def test_other_expressions_are_not_polynomials(op: OpBuilder, x: Any, spell: str) -> None:
    y = {
        "Div(1.0, x)": lambda: op.Div(1.0, x),
        "Sqrt(x)": lambda: op.Sqrt(x),
        "Pow(x, 0.5)": lambda: op.Pow(x, 0.5),
        "Pow(x, x)": lambda: op.Pow(x, x),
    }[spell]()
    assert polynomial(y, [x]) is None


def test_deep_expressions_are_refused(op: OpBuilder, x: Any) -> None:
    y = x
    for _ in range(40):
        y = op.Mul(y, y)
    assert polynomial(y, [x]) is None
    assert len(operands(y)) <= 11
