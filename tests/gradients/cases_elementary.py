"""Cases of rules/elementary.py."""

from __future__ import annotations

from typing import Any

from tests.gradients.case import Case, between, normal, positive, spread


def unary(operator: str, feed: Any, note: str = "") -> Case:
    return Case(operator, lambda op, x: op.node(operator, [x], {}), {"x": feed}, note)


CASES = [
    unary("Neg", normal(2, 3)),
    unary("Abs", spread(2, 3)),
    unary("Reciprocal", positive(2, 3)),
    unary("Sqrt", positive(2, 3)),
    unary("Exp", normal(2, 3)),
    unary("Exp", normal(), "rank 0"),
    unary("Exp", normal(0, 3), "empty"),
    unary("Log", positive(2, 3)),
    unary("Erf", normal(2, 3)),
    unary("Sin", normal(2, 3)),
    unary("Cos", normal(2, 3)),
    unary("Tan", between(-1.2, 1.2, 2, 3)),
    unary("Asin", between(-0.9, 0.9, 2, 3)),
    unary("Acos", between(-0.9, 0.9, 2, 3)),
    unary("Atan", normal(2, 3)),
    unary("Sinh", normal(2, 3)),
    unary("Cosh", normal(2, 3)),
    unary("Tanh", normal(2, 3)),
    unary("Asinh", normal(2, 3)),
    unary("Acosh", between(1.2, 4, 2, 3)),
    unary("Atanh", between(-0.9, 0.9, 2, 3)),
]
