"""SGD is torch's, in few passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onward.errors import OptionError
from onward.optimizers.sgd import SGD
from onward.optimizers.update_models import flat_update
from tests.optimizers.case import by_graph, by_torch, distance, passes

# options, passes over the vector, passes with a gradient scale
CASES: list[tuple[dict[str, Any], int, int]] = [
    ({}, 2, 2),
    ({"maximize": True}, 2, 2),
    ({"weight_decay": 0.1}, 3, 3),
    ({"weight_decay": 0.1, "maximize": True}, 3, 3),
    ({"momentum": 0.9}, 4, 5),
    ({"momentum": 0.9, "maximize": True}, 4, 5),
    ({"momentum": 0.9, "dampening": 0.3}, 5, 5),
    ({"momentum": 0.9, "nesterov": True}, 6, 7),
    ({"momentum": 0.9, "weight_decay": 0.1}, 6, 7),
    ({"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True}, 8, 9),
    ({"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1, "maximize": True}, 7, 8),
]


@pytest.mark.parametrize(("options", "plain", "scaled"), CASES, ids=lambda case: str(case))
def test_sgd_matches_torch(options: dict[str, Any], plain: int, scaled: int) -> None:
    optimizer = SGD(lr=0.01, **options)
    for dtype, bound in (("float32", 1e-5), ("float64", 1e-13)):
        expected = by_torch(torch.optim.SGD, dtype=dtype, lr=0.01, **options)
        assert distance(by_graph(optimizer, dtype=dtype), expected) < bound
        assert distance(by_graph(optimizer, dtype=dtype, scale=0.25), expected) < bound
    assert passes(flat_update(optimizer)) == plain
    assert passes(flat_update(optimizer, scaled=True)) == scaled


def test_nesterov_without_momentum_is_refused() -> None:
    law = (
        r"SGD\.nesterov needs momentum above 0 and dampening 0, not momentum=0\.0 and "
        r"dampening=0\.0\nset momentum, such as 0\.9, and leave dampening out"
    )
    with pytest.raises(OptionError, match=law):
        SGD(nesterov=True)
    with pytest.raises(OptionError, match=r"not momentum=0\.9 and dampening=0\.1"):
        SGD(nesterov=True, momentum=0.9, dampening=0.1)


def test_defaults_of_sgd_are_those_of_torch() -> None:
    defaults = torch.optim.SGD([torch.zeros(1)]).defaults
    record = SGD().to_dict()
    assert record.pop("state_dtype") is None  # torch has no such setting
    assert {name: defaults[name] for name in record if name != "kind"} | {"kind": "SGD"} == record
