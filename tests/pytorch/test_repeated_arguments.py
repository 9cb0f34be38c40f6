"""A tensor that a call has twice is two arguments: other calls may have two different tensors."""

from __future__ import annotations

import torch
from torch import nn

from onward.pytorch.capture import capture


class Difference(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.exp() - b.sin()


def test_repeated_tensor_is_captured_as_two_inputs() -> None:
    x = torch.ones(3, 2)
    model = capture(Difference(), (x, x), {}).model
    used = [value.name for value in model.graph.inputs if value.uses()]
    assert used == ["a", "b"]
