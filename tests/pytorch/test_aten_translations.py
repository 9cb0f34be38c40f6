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


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clamp(-1, 2),
        lambda x: x.clamp(min=0),
        lambda x: x.clamp(max=torch.tensor([0.0, 1.0, 2.0, 3.0])),
        lambda x: x.clamp(torch.zeros(4), torch.full((3, 1), 2.0)),
        lambda x: x.std(1),
        lambda x: x.std((0, 1), correction=0, keepdim=True),
        lambda x: x.std(),
    ],
)
def test_gradients_at_bounds_and_of_equal_rows_are_those_of_torch(function: Any) -> None:
    x = torch.tensor([[0.0, -1.0, 2.0, 3.0], [3.0] * 4, [0.0] * 4], requires_grad=True)
    assert_as_eager(Calls(function), x)


def test_a_loss_that_torch_decomposes_wrongly_runs_in_torch() -> None:
    x, target = torch.randn(2, 3), torch.tensor([[2, -1, 0]] * 2)
    captured = Module(Calls(nn.functional.multilabel_margin_loss))
    with pytest.warns(FallbackWarning, match="multilabel_margin_loss has no ONNX operators"):
        found = captured(x, target)
    torch.testing.assert_close(found, nn.functional.multilabel_margin_loss(x, target))


@pytest.mark.parametrize("reduce", ["mean", "sum", "amax", "prod"])
@pytest.mark.parametrize("include_self", [True, False])
def test_values_scattered_into_a_tensor_are_those_of_torch(reduce: str, include_self: bool) -> None:
    torch.manual_seed(0)
    index = torch.tensor([2, 0, 2, 4])[:, None].expand(4, 3)

    def scatter(x: Tensor, src: Tensor) -> Tensor:
        return x.scatter_reduce(0, index, src, reduce, include_self=include_self)

    assert_as_eager(Calls(scatter), torch.randn(5, 3), torch.randn(4, 3).requires_grad_())


def test_random_slopes_are_drawn_in_training_only() -> None:
    x = torch.cat([torch.full((4000,), -1.0), torch.tensor([0.0, 2.0])])
    captured = Module(nn.RReLU(0.2, 0.4), {"fallback": "forbid"})
    slopes = -captured(x)[:4000]
    assert 0.2 <= slopes.min() < 0.21 and 0.39 < slopes.max() <= 0.4
    assert abs(slopes.mean() - 0.3) < 0.01
    captured.eval()
    torch.testing.assert_close(captured(x), nn.functional.rrelu(x, 0.2, 0.4))
