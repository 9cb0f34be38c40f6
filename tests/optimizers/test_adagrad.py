"""Adagrad is torch's, in few passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onward.optimizers.adagrad import Adagrad
from onward.optimizers.update_models import flat_update
from tests.optimizers.case import by_graph, by_torch, distance, passes

# options, passes over the vector, passes with a gradient scale
CASES: list[tuple[dict[str, Any], int, int]] = [
    ({}, 7, 8),
    ({"maximize": True, "eps": 1e-3}, 7, 8),
    ({"weight_decay": 0.1}, 9, 10),
    ({"lr_decay": 0.1, "initial_accumulator_value": 0.5}, 7, 8),
]


@pytest.mark.parametrize(("options", "plain", "scaled"), CASES, ids=lambda case: str(case))
def test_adagrad_matches_torch(options: dict[str, Any], plain: int, scaled: int) -> None:
    optimizer = Adagrad(lr=0.01, **options)
    for dtype, bound in (("float32", 1e-5), ("float64", 1e-13)):
        expected = by_torch(torch.optim.Adagrad, dtype=dtype, lr=0.01, **options)
        assert distance(by_graph(optimizer, dtype=dtype), expected) < bound
        assert distance(by_graph(optimizer, dtype=dtype, scale=0.25), expected) < bound
    assert passes(flat_update(optimizer)) == plain
    assert passes(flat_update(optimizer, scaled=True)) == scaled


def test_defaults_of_adagrad_are_those_of_torch() -> None:
    defaults = torch.optim.Adagrad([torch.zeros(1)]).defaults
    record = Adagrad().to_dict()
    assert all(defaults[name] == value for name, value in record.items() if name != "kind")
