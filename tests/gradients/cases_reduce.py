"""Cases of rules/reduce.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, normal, positive, spread


def reduce(operator: str, feed: Any, note: str = "", axes: Any = None, **attributes: Any) -> Case:
    inputs = [] if axes is None else [axes]
    return Case(
        operator, lambda op, x: op.node(operator, [x, *inputs], attributes), {"x": feed}, note
    )


def several(operator: str, make: Any, **ways: bool) -> list[Case]:
    """What every reduction must get right."""
    return [
        reduce(operator, make(2, 3, 4), "all axes"),
        reduce(operator, make(2, 3, 4), "all axes, dropped", keepdims=0),
        reduce(operator, make(2, 3, 4), "one axis", [1]),
        reduce(operator, make(2, 3, 4), "one axis, dropped", [-2], keepdims=0),
        reduce(operator, make(2, 3, 4), "two axes, dropped", [-1, 0], keepdims=0),
        reduce(operator, make(2, 3), "over none", noop_with_empty_axes=1),
        reduce(
            operator,
            make(2, 3),
            "no axes, given",
            np.array([], np.int64),
            noop_with_empty_axes=1,
        ),
        reduce(operator, make(2, 3), "all axes, given", np.array([], np.int64), keepdims=0),
        reduce(operator, make(), "rank 0", keepdims=0),
        Case(
            operator,
            lambda op, x, axes: op.node(operator, [x, axes], {"keepdims": 0}),
            {"x": make(2, 3, 4), "axes": np.array([1, -1])},
            "axes fed",
        ),
    ]


def scan(operator: str, feed: Any, note: str = "", axis: int = 0, **attributes: Any) -> Case:
    return Case(
        operator,
        lambda op, x: op.node(operator, [x, np.int64(axis)], attributes),
        {"x": feed},
        note,
    )


def nonzero(*shape: int) -> Any:
    return np.asarray(spread(*shape, gap=0.3))


ZEROS = np.array([[0.0, 2.0, 3.0], [1.0, 0.0, 0.0], [0.5, -1.0, 2.0], [0.0, 0.0, 0.0]])
TIED = np.array([[1.0, 2.0, 2.0], [-1.0, -1.0, 0.5]])

CASES = [
    *several("ReduceSum", normal),
    reduce("ReduceSum", normal(2, 0, 3), "over nothing", [1]),
    *several("ReduceMean", normal),
    reduce("ReduceMean", normal(0, 3), "empty", [1], keepdims=0),
    *several("ReduceSumSquare", normal),
    *several("ReduceL1", nonzero),
    *several("ReduceL2", nonzero),
    Case(
        "ReduceL2",
        lambda op, x: op.ReduceL2(x, [1]),
        {"x": np.array([[0.0, 0.0], [3.0, 4.0]])},
        "of zeros: 0",
        differences=False,
    ),
    *several("ReduceLogSum", positive),
    *several("ReduceLogSumExp", normal),
    reduce("ReduceLogSumExp", normal(2, 3) * 500, "large", [1]),
    Case(
        "ReduceLogSumExp",
        lambda op, x: op.ReduceLogSumExp(x, [1]),
        {"x": np.array([[-np.inf, -np.inf], [-np.inf, 1.0]])},
        "of -inf: 0",
        differences=False,
        autograd=False,  # torch says NaN
    ),
    *several("ReduceMax", nonzero),
    reduce("ReduceMax", TIED, "ties", [1]),
    Case(
        "ReduceMax",
        lambda op, x: op.ReduceMax(x, keepdims=0),
        {"x": np.array([1.0, 2.0, 2.0, 2.0])},
        "three ties",
        differences=False,  # along a direction that tells them apart, only the ends count
    ),
    *several("ReduceMin", nonzero),
    reduce("ReduceMin", TIED, "ties", [1], keepdims=0),
    *several("ReduceProd", nonzero),
    reduce("ReduceProd", ZEROS, "zeros", [1]),
    reduce("ReduceProd", ZEROS[[0, 2]], "a zero among all"),
    reduce("ReduceProd", normal(2, 0), "over nothing", [1]),
    scan("CumSum", normal(3, 4)),
    scan("CumSum", normal(3, 4), "last axis", -1),
    scan("CumSum", normal(3, 4), "exclusive", 1, exclusive=1),
    scan("CumSum", normal(3, 4), "reverse", 1, reverse=1),
    scan("CumSum", normal(3, 4), "exclusive, reverse", 0, exclusive=1, reverse=1),
    scan("CumSum", normal(0, 4), "empty"),
    scan("CumProd", normal(4, 3)),
    scan("CumProd", normal(3, 4), "last axis", -1),
    scan("CumProd", normal(3, 4), "exclusive", 1, exclusive=1),
    scan("CumProd", normal(3, 4), "reverse", 1, reverse=1),
    scan("CumProd", normal(3, 4), "exclusive, reverse", 0, exclusive=1, reverse=1),
    scan("CumProd", ZEROS, "zeros", 1),
    scan("CumProd", ZEROS, "zeros, exclusive", 1, exclusive=1),
    scan("CumProd", ZEROS, "zeros, reverse", 1, reverse=1),
    scan("CumProd", ZEROS, "zeros, exclusive, reverse", 1, exclusive=1, reverse=1),
]
