"""Cases of rules/scatter.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, normal, spread

OFTEN = np.array([[0, 2, 2], [0, -1, 1]])  # some positions twice (axis 0 of 3)
ONCE = np.array([[0, 2, 1], [1, -2, 2]])
PLACES = np.array([[0, 1], [2, -1], [0, 1], [1, 0]])
APART = np.array([[0, 1], [2, -1], [1, 0]])


def elements(x: Any, i: Any, u: Any, reduction: str, note: str, axis: int = 0) -> Case:
    return Case(
        "ScatterElements",
        lambda op, x, i, u: op.ScatterElements(x, i, u, axis=axis, reduction=reduction),
        {"x": x, "i": i, "u": u},
        note,
    )


def nd(x: Any, i: Any, u: Any, reduction: str, note: str) -> Case:
    return Case(
        "ScatterND",
        lambda op, x, i, u: op.ScatterND(x, i, u, reduction=reduction),
        {"x": x, "i": i, "u": u},
        note,
    )


X, U = spread(3, 3), spread(2, 3) + 0.03
ROWS, UPDATES = spread(3, 4, 2), spread(4, 2) + 0.03

ZERO_X = np.array([[0.0, 2.0, 3.0], [1.5, -1.0, 0.5], [0.0, 1.0, 2.0]])
ZERO_U = np.array([[0.0, 0.0, 2.0], [3.0, 0.0, 0.0]])
TIED_X = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 3.0], [5.0, 2.0, 2.0]])
TIED_U = np.array([[1.0, 4.0, 2.0], [0.5, 4.0, 3.0]])


def cache(note: str, start: Any, axis: int, mode: str, update: Any) -> Case:
    return Case(
        "TensorScatter",
        lambda op, past, update, start=None: op.TensorScatter(
            past, update, start, axis=axis, mode=mode
        ),
        {"past": normal(2, 3, 5, 2), "update": update}
        | ({} if start is None else {"start": np.array(start)}),
        note,
        ort=False,  # has no kernel for it
    )


CASES = [
    elements(X, ONCE, U, "none", "none"),
    elements(X, ONCE.T, U.T, "none", "none, last axis", -1),
    *(elements(X, OFTEN, U, how, how) for how in ("add", "mul", "max", "min")),
    elements(ZERO_X, OFTEN, ZERO_U, "mul", "mul, zeros"),
    elements(TIED_X, OFTEN, TIED_U, "max", "max, ties"),
    elements(TIED_X, OFTEN, TIED_U, "min", "min, ties"),
    Case(
        "Scatter",
        lambda op, x, i, u: op.Scatter(x, i, u, axis=0),
        {"x": X, "i": ONCE, "u": U},
        opset=10,
    ),
    nd(ROWS, APART, UPDATES[:3], "none", "none"),
    *(nd(ROWS, PLACES, UPDATES, how, how) for how in ("add", "mul", "max", "min")),
    nd(ZERO_X, np.array([[0, 1], [0, 0], [0, 1]]), np.array([0.0, 0.0, 2.0]), "mul", "mul, zeros"),
    nd(TIED_X, np.array([[0, 1], [0, 0]]), np.array([2.0, 1.0]), "max", "max, ties"),
    nd(TIED_X, np.array([[0], [2]]), np.array([[1.0, 1.0, 3.0], [5.0, 2.0, 0.0]]), "min", "rows"),
    cache("linear", [1, 3], 2, "linear", normal(2, 3, 2, 2)),
    cache("circular", [4, 9], -2, "circular", normal(2, 3, 3, 2)),
    cache("from the start", None, 2, "linear", normal(2, 3, 2, 2)),
    cache("another axis", [1, 0], 1, "linear", normal(2, 2, 5, 2)),
]
