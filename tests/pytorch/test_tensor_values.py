"""Numbers that a forward reads of a buffer or an attribute are conditions of a program."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module

Tensor = torch.Tensor


class ActNorm(nn.Module):
    """Scales by the statistics of its first batch."""

    is_ready: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(3))
        self.register_buffer("is_ready", torch.tensor(0, dtype=torch.uint8))
        self.heat = torch.tensor(2.0)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_ready.item() == 0:
            self.shift.data.copy_(-x.mean(0))
            self.is_ready.data.fill_(1)
        return (x + self.shift) / float(self.heat)


@pytest.mark.integration
def test_parameters_that_depend_on_the_first_batch() -> None:
    module: Any = nn.Sequential(nn.Linear(3, 3), ActNorm())
    captured: Any = Module(copy.deepcopy(module), {"fallback": "forbid"})
    for i in range(6):
        x = torch.randn(2, 3)
        torch.testing.assert_close(captured(x), module(x))
        for each in (module, captured):
            each[1].heat.fill_(4.0 if i == 2 else 2.0)
    assert captured[1].is_ready.item() == 1
    assert len(captured.programs) == 2  # of each heat
    for each in (module, captured):
        each[1].is_ready.zero_()
    torch.testing.assert_close(captured(x), module(x))
    torch.testing.assert_close(captured[1].shift, module[1].shift)


class Warms(nn.Module):
    """Counts its calls in a buffer, and reads the count."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        scale = min(1.0, self.steps.item() / 4)
        self.steps += 1
        return x * scale


def test_a_number_of_a_buffer_that_each_call_changes() -> None:
    module, x = Warms(), torch.ones(2)
    captured = Module(copy.deepcopy(module))
    with pytest.warns(FallbackWarning, match="it reads a number of its buffer steps"):
        for _ in range(5):
            torch.testing.assert_close(captured(x), module(x))


def test_a_branch_on_the_value_of_a_tensor_runs_in_torch() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.warns(FallbackWarning, match="it branches on the value of a tensor"):
        assert Module(Branches())(torch.ones(2)).tolist() == [1.0, 1.0]
