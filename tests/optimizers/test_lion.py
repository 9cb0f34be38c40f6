"""Lion is its paper's formula, in few passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.optimizers.lion import Lion
from onward.optimizers.update_models import flat_update
from tests.optimizers.case import (
    Array,
    Tensors,
    by_formula,
    by_graph,
    distance,
    passes,
)

# options, passes over the vector, passes with a gradient scale
CASES: list[tuple[dict[str, Any], int, int]] = [
    ({}, 7, 8),
    ({"weight_decay": 0.1}, 8, 9),
    ({"betas": (0.0, 0.9)}, 5, 6),
    ({"betas": (0.95, 0.0)}, 7, 8),
]


@pytest.mark.parametrize(("options", "plain", "scaled"), CASES, ids=lambda case: str(case))
def test_lion_matches_its_formula(options: dict[str, Any], plain: int, scaled: int) -> None:
    optimizer = Lion(lr=0.003, **options)
    b1, b2 = optimizer.betas

    def formula(p: Array, g: Array, slots: Tensors, step: int) -> Array:
        m = slots.get("m", 0.0 * g)
        slots["m"] = b2 * m + (1 - b2) * g
        kept = (1 - optimizer.lr * optimizer.weight_decay) * p
        return np.asarray(kept - optimizer.lr * np.sign(b1 * m + (1 - b1) * g))

    expected = by_formula(formula)
    assert distance(by_graph(optimizer), expected) < 1e-5
    assert distance(by_graph(optimizer, dtype="float64"), expected) < 1e-13
    assert distance(by_graph(optimizer, dtype="float64", scale=0.25), expected) < 1e-13
    assert passes(flat_update(optimizer)) == plain
    assert passes(flat_update(optimizer, scaled=True)) == scaled
