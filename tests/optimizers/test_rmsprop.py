"""RMSprop is torch's, in few passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onward.optimizers.rmsprop import RMSprop
from onward.optimizers.update_models import flat_update
from tests.optimizers.case import by_graph, by_torch, distance, passes, session

# options, passes over the vector, passes with a gradient scale
CASES: list[tuple[dict[str, Any], int, int]] = [
    ({}, 9, 9),
    ({"maximize": True, "alpha": 0.8}, 9, 9),
    ({"weight_decay": 0.1}, 11, 12),
    ({"momentum": 0.9}, 11, 12),
    ({"momentum": 0.9, "maximize": True}, 11, 12),
    ({"centered": True}, 15, 15),
    ({"centered": True, "momentum": 0.9, "weight_decay": 0.1, "eps": 1e-3}, 19, 20),
]


@pytest.mark.parametrize(("options", "plain", "scaled"), CASES, ids=lambda case: str(case))
def test_rmsprop_matches_torch(options: dict[str, Any], plain: int, scaled: int) -> None:
    optimizer = RMSprop(lr=0.003, **options)
    for dtype, bound in (("float32", 1e-5), ("float64", 1e-13)):
        expected = by_torch(torch.optim.RMSprop, dtype=dtype, lr=0.003, **options)
        assert distance(by_graph(optimizer, dtype=dtype), expected) < bound
        assert distance(by_graph(optimizer, dtype=dtype, scale=0.25), expected) < bound
    assert passes(flat_update(optimizer)) == plain
    assert passes(flat_update(optimizer, scaled=True)) == scaled


def test_defaults_of_rmsprop_are_those_of_torch() -> None:
    defaults = torch.optim.RMSprop([torch.zeros(1)]).defaults
    record = RMSprop().to_dict()
    assert all(defaults[name] == value for name, value in record.items() if name != "kind")


def test_a_constant_gradient_stays_finite_when_centered() -> None:
    """The variance of what does not vary is 0, and rounding must not make it negative."""
    run = session(flat_update(RMSprop(centered=True, alpha=0.9)))
    state = [np.zeros(64, np.float32) for _ in range(3)]
    g = np.linspace(0.1, 3.0, 64, dtype=np.float32)
    for step in range(1, 400):
        names = ["parameters", "square_avg", "grad_avg"]
        feeds = {**dict(zip(names, state)), "gradients": g}
        feeds |= {"learning_rate": np.array(0.0, np.float32), "step": np.array(step)}
        state = run.run(None, feeds)
        assert np.isfinite(state[0]).all()
