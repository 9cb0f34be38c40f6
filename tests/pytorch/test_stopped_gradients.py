"""detach, no_grad and padding rows: no gradient flows through them, changes in place are kept."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module
from tests.pytorch.eager import Calls, assert_as_eager


def stopped(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().sum(-1, keepdim=True)
        shift = scale + 1
    return x / scale + shift * x + x.detach() * x


def test_detach_and_no_grad_stop_gradients() -> None:
    assert_as_eager(Calls(stopped), torch.rand(3, 4, requires_grad=True))


def test_padding_rows_of_an_embedding_get_no_gradient() -> None:
    assert_as_eager(nn.Embedding(5, 3, padding_idx=1), torch.tensor([[0, 1], [4, 1]]))


def test_the_captured_model_has_standard_operators() -> None:
    module = Module(Calls(stopped))
    module(torch.ones(3, 4, requires_grad=True))
    [program] = module.programs
    assert {node.domain for node in program.capture.model.graph} == {""}
    assert program.capture.model.opset_imports.keys() == {""}


class Counter(nn.Module):
    """A buffer that is changed through a detached view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.total: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.total.detach()[:3].add_(x.detach().sum(0)[:3])
        return x * self.total


def test_a_buffer_is_changed_through_detach() -> None:
    module = Counter()
    captured = Module(copy.deepcopy(module), {"fallback": "forbid"})
    x = torch.rand(3, 4)
    torch.testing.assert_close(captured(x), module(x))
    torch.testing.assert_close(captured.total, module.total)


def double_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.detach().mul_(2)
    return y * y


def test_a_detached_value_that_is_changed_runs_in_torch() -> None:
    x = torch.rand(3, 4, requires_grad=True)
    captured = Module(Calls(double_in_place))
    with pytest.warns(FallbackWarning, match="it changes a detached tensor in place"):
        found = captured(x)
    torch.testing.assert_close(found, double_in_place(x))


def test_an_embedding_with_a_largest_norm_runs_in_torch() -> None:
    module, rows = nn.Embedding(5, 3, max_norm=0.5), torch.tensor([0, 3])
    captured = Module(copy.deepcopy(module))
    found = [captured(rows)]  # what only the first call changes is captured in the second
    with pytest.warns(FallbackWarning, match="it changes a parameter"):
        found.append(captured(rows))
    for each in found:
        torch.testing.assert_close(each, module(rows))
    torch.testing.assert_close(captured.weight, module.weight)
