"""Translations of ATen operators: settings that change only the gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module
from tests.pytorch.eager import Calls, assert_as_eager

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


@pytest.mark.parametrize(
    ("shift", "axis"), [(1, 0), (-2, -1), (5, None), ((1, -3), (0, 1)), ("size", 0), ("size", None)]
)
def test_rolled_tensors_are_those_of_torch(shift: Any, axis: Any) -> None:
    def roll(x: Tensor) -> Tensor:
        by = x.shape[0] // 2 + 7 if shift == "size" else shift
        return x.roll(by, axis) * torch.arange(x.shape[0])[:, None]

    captured = Module(Calls(roll), {"fallback": "forbid"})
    for rows in (4, 6, 9):
        x, y = (torch.arange(3.0 * rows).view(rows, 3).requires_grad_() for _ in range(2))
        expected, found = roll(x), captured(y)
        torch.testing.assert_close(found, expected)
        expected.square().sum().backward()
        found.square().sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
    assert len(captured.programs) == 2


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("rows", [4, 30])  # above 25, torch takes a matrix product
def test_distances_have_the_gradients_of_torch(p: float, rows: int) -> None:
    torch.manual_seed(0)
    known = torch.randn(rows, 3)
    assert_as_eager(
        Calls(lambda x: torch.cdist(x, known, p=p)), torch.randn(rows, 3).requires_grad_()
    )
    assert_as_eager(  # distances of 0, too
        Calls(lambda x: torch.cdist(x, x, p=p)), torch.randn(rows, 3).round().requires_grad_()
    )


def test_distances_of_other_norms_run_in_torch() -> None:
    x = torch.randn(3, 2, requires_grad=True)
    with pytest.warns(FallbackWarning, match="torch.cdist with p=3 has no ONNX operators"):
        Module(Calls(lambda x: torch.cdist(x, x, p=3.0)))(x)
