"""Translations of ATen operators: settings that change only the gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module

INDICES = torch.tensor([[0, 1, 1], [4, 1, 0]])


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("setting", ["scale_grad_by_freq", "sparse"])
def test_a_table_with_another_gradient_runs_in_torch(layer: type[nn.Module], setting: str) -> None:
    torch.manual_seed(0)
    module: nn.Module = layer(5, 3, **{setting: True})
    found: list[Tensor] = []
    captured = Module(module)
    with pytest.warns(FallbackWarning, match=f"{layer.__name__} with {setting}"):
        captured(INDICES).sum().backward()
    for each in (captured, module):
        each.zero_grad()
        each(INDICES).sum().backward()
        assert isinstance(module.weight, Tensor) and module.weight.grad is not None
        found.append(module.weight.grad)
    assert found[0].is_sparse == (setting == "sparse") == found[1].is_sparse
    torch.testing.assert_close(found[0].to_dense(), found[1].to_dense())


def test_a_table_with_sparse_gradients_is_captured_for_inference() -> None:
    module = nn.Embedding(5, 3, sparse=True)
    captured = Module(module, {"fallback": "forbid"})
    with torch.no_grad():
        torch.testing.assert_close(captured(INDICES), module(INDICES))
