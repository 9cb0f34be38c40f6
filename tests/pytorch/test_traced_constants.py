"""Tensors that a submodule makes in its forward become constants of the captured graph."""

from __future__ import annotations

import torch
from torch import nn

import onward


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(x) + torch.tensor([1.0, 2.0])
        return found


def test_tensor_made_in_a_submodule_is_a_constant() -> None:
    module = nn.Sequential(Shifted())
    wrapped, x = onward.Module(module, {"fallback": "forbid"}), torch.ones(2, 3)
    torch.testing.assert_close(wrapped(x), module(x))
    [program] = wrapped.programs
    assert set(program.capture.tensors) == {"0.linear.weight", "0.linear.bias"}
