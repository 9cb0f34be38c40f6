"""Muon is torch's, but for torch's bfloat16."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onward.errors import OptionError
from onward.optimizers.muon import Muon
from onward.optimizers.update_models import named_update
from tests.optimizers.case import MATRICES, by_graph, by_torch, distance

CASES: list[dict[str, Any]] = [
    {},
    {"nesterov": False, "weight_decay": 0.0, "ns_steps": 3},
    {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.8, "eps": 1e-3},
    {"ns_coefficients": (2.0, -1.5, 0.5)},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_muon_matches_torch(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch in the parameter's own type: bfloat16 is the only thing that differs."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.clone())
    for dtype, bound in (("float32", 1e-5), ("float64", 1e-6)):  # Gemm's factors are float32
        expected = by_torch(torch.optim.Muon, MATRICES, dtype, lr=0.02, **options)
        optimizer = Muon(lr=0.02, **options)
        assert distance(by_graph(optimizer, MATRICES, dtype), expected) < bound
        assert distance(by_graph(optimizer, MATRICES, dtype, scale=0.25), expected) < bound


def test_muon_differs_from_torch_only_by_bfloat16() -> None:
    expected = by_torch(torch.optim.Muon, MATRICES, lr=0.02)
    assert distance(by_graph(Muon(lr=0.02), MATRICES), expected) < 0.05


def test_defaults_of_muon_are_those_of_torch() -> None:
    defaults = torch.optim.Muon([torch.zeros(1, 1)]).defaults | {"adjust_lr_fn": "original"}
    optimizer = Muon()
    assert all(getattr(optimizer, n) == defaults[n] for n in optimizer.to_dict() if n != "kind")


def test_muon_refuses_vectors() -> None:
    law = (
        r"Muon updates matrices, not a parameter of shape \(3,\)\n"
        r"give it to another optimizer: Group\(parameters=\.\.\., optimizer=AdamW\(\)\)"
    )
    with pytest.raises(OptionError, match=law):
        named_update(Muon(), {"bias": ("float32", (3,))})


@pytest.mark.parametrize("coefficients", [(1.0, 2.0), 3.0, (1.0, 2.0, float("nan")), ("a",) * 3])
def test_wrong_coefficients_are_refused(coefficients: Any) -> None:
    law = r"Muon\.ns_coefficients(\[\d\])? must be (three numbers|a number), not .*$"
    with pytest.raises(OptionError, match=law):
        Muon(ns_coefficients=coefficients)
