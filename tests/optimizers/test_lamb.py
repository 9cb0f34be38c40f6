"""LAMB is its paper's formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.optimizers.lamb import LAMB
from onward.optimizers.update_models import named_update
from tests.optimizers.case import (
    TENSORS,
    Array,
    Tensors,
    by_formula,
    by_graph,
    distance,
    passes,
    session,
)


def reference(optimizer: LAMB) -> Tensors:
    b1, b2 = optimizer.betas

    def formula(p: Array, g: Array, slots: Tensors, step: int) -> Array:
        m = slots["m"] = b1 * slots.get("m", 0.0 * g) + (1 - b1) * g
        v = slots["v"] = b2 * slots.get("v", 0.0 * g) + (1 - b2) * g * g
        if optimizer.correct_bias:
            m, v = m / (1 - b1**step), v / (1 - b2**step)
        r = m / (np.sqrt(v) + optimizer.eps) + optimizer.weight_decay * p
        size, length = np.sqrt(np.sum(p * p)), np.sqrt(np.sum(r * r))
        ratio = size / length if size > 0 and length > 0 else 1.0
        return np.asarray(p - optimizer.lr * ratio * r)

    return by_formula(formula, TENSORS)


@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.1}, {"correct_bias": False, "betas": (0.8, 0.9), "eps": 1e-3}],
    ids=str,
)
def test_lamb_matches_its_formula(options: dict[str, Any]) -> None:
    optimizer = LAMB(lr=0.01, **options)
    expected = reference(optimizer)
    assert distance(by_graph(optimizer, TENSORS), expected) < 1e-5
    assert distance(by_graph(optimizer, TENSORS, "float64"), expected) < 1e-12
    assert distance(by_graph(optimizer, TENSORS, "float64", scale=8.0), expected) < 1e-12


def test_a_parameter_of_zeros_moves_with_ratio_one() -> None:
    feeds = {
        "w": np.zeros(3, np.float32),
        "w.gradient": np.array([2.0, -3.0, 4.0], np.float32),
        "w.exp_sum": np.zeros(3, np.float32),
        "w.exp_sum_sq": np.zeros(3, np.float32),
        "learning_rate": np.float32(0.5),
        "step": np.int64(1),
    }
    new, *_ = run(named_update(LAMB(eps=0.0), {"w": ("float32", (3,))}), feeds)
    np.testing.assert_allclose(new, [-0.5, 0.5, -0.5], rtol=1e-6)
    feeds |= {"w": np.ones(3, np.float32), "w.gradient": np.zeros(3, np.float32)}
    new, *_ = run(named_update(LAMB(), {"w": ("float32", (3,))}), feeds)
    np.testing.assert_array_equal(new, np.ones(3))


def test_number_of_passes() -> None:
    shape = {"w": ("float32", (4, 5))}
    assert passes(named_update(LAMB(), shape)) == 11
    assert passes(named_update(LAMB(weight_decay=0.1), shape)) == 13


def run(model: Any, feeds: dict[str, Any]) -> list[Array]:
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    return list(session(model).run(None, arrays))
