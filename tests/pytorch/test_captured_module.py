"""CapturedModule: what a trace depends on, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module
from tests.pytorch.eager import Calls, assert_as_eager


class Scaled(nn.Module):
    """A module with a constant, and a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.adds, self.scale = False, torch.tensor([2.0, 3.0])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale if self.adds else x * self.scale


@pytest.mark.integration
def test_attributes_of_a_module() -> None:
    module = Module(Scaled())
    x = torch.ones(1, 2)
    assert module(x).tolist() == [[2.0, 3.0]]
    module.scale = torch.tensor([5.0, 6.0])
    assert module(x).tolist() == [[5.0, 6.0]]
    module.adds = True
    assert module(x).tolist() == [[6.0, 7.0]]


def test_constants_that_the_forward_makes() -> None:
    assert_as_eager(
        Calls(lambda x: x * torch.tensor([2.0, 3.0])), torch.rand(1, 2).requires_grad_()
    )


@pytest.mark.integration
def test_pieces_along_an_axis_of_changing_size() -> None:
    assert_as_eager(Calls(lambda x: x.chunk(3)), torch.rand(8, 2, requires_grad=True))


class Box:
    def __init__(self, content: Any) -> None:
        self.content = content


def test_objects_with_tensors_run_in_pytorch() -> None:
    module = Module(Calls(lambda x, box: x + box.content))
    x, box = torch.zeros(1), Box(torch.ones(1))
    with pytest.warns(FallbackWarning, match=r"it takes <class .*Box'>, whose tensors are hidden"):
        assert module(x, box).item() == 1.0
    box.content = torch.full((1,), 5.0)
    assert module(x, box).item() == 5.0
    with pytest.warns(
        FallbackWarning, match=r"it returns <class .*Box'>, whose tensors are hidden"
    ):
        assert Module(Calls(lambda x: (x, Box(x))))(x)[1].content is x
