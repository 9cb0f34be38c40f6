"""Adafactor is torch's, for scalars, vectors, matrices and kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onward.errors import OptionError
from onward.optimizers.adafactor import Adafactor
from onward.optimizers.update_models import named_update
from tests.optimizers.case import TENSORS, by_graph, by_torch, distance, passes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"maximize": True},
        {"weight_decay": 0.1, "d": 1.5},
        {"beta2_decay": -0.5, "eps": (1e-3, 0.1)},
    ],
    ids=str,
)
def test_adafactor_matches_torch(options: dict[str, Any]) -> None:
    optimizer = Adafactor(**options)
    for dtype, bound in (("float32", 1e-5), ("float64", 1e-12)):
        expected = by_torch(torch.optim.Adafactor, TENSORS, dtype, lr=0.01, **options)
        assert distance(by_graph(optimizer, TENSORS, dtype), expected) < bound
        assert distance(by_graph(optimizer, TENSORS, dtype, scale=0.25), expected) < bound


def test_defaults_of_adafactor_are_those_of_torch() -> None:
    defaults = torch.optim.Adafactor([torch.zeros(1)]).defaults
    optimizer = Adafactor()
    assert all(getattr(optimizer, n) == defaults[n] for n in optimizer.to_dict() if n != "kind")


def test_slots_of_a_matrix_are_a_row_and_a_column() -> None:
    assert Adafactor().slots((5, 7)) == {"row_var": (5, 1), "col_var": (1, 7)}
    assert Adafactor().slots((7,)) == {"variance": (7,)}


def test_number_of_passes() -> None:
    """Those over the whole matrix; what looks at rows and columns is small."""
    model = named_update(Adafactor(weight_decay=0.1), {"w": ("float32", (4, 5))})
    whole = [node for node in model.graph if node.outputs[0].shape == (4, 5)]
    assert len(whole) == 6
    assert passes(named_update(Adafactor(), {"w": ("float32", (4,))})) == 9


@pytest.mark.parametrize("eps", [1e-8, (None,), (None, None), (-1.0, 1e-3), (None, float("inf"))])
def test_wrong_epsilons_are_refused(eps: Any) -> None:
    law = r"Adafactor\.eps must be two numbers, at least 0, the first of which may be None, not .*$"
    with pytest.raises(OptionError, match=law):
        Adafactor(eps=eps)
