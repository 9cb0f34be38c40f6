"""Tensors that no module registers are read in each call; changes of them run in PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module

Tensor = torch.Tensor
SHIFT = torch.zeros(3)


class Holds(nn.Module):
    """A layer with tensors in containers."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(3, 3), function
        self.table, self.tensors = {"shift": torch.zeros(3)}, [torch.ones(3)]
        self.attribute = torch.ones(3)
        self.layers: list[nn.Module] = [nn.Linear(3, 3), nn.BatchNorm1d(3)]

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.layer(x)) + SHIFT


def read_containers(self: Any, y: Tensor) -> Tensor:
    made = torch.tensor([1.0, 2.0, 3.0])
    return y * self.tensors[0] + self.table["shift"] * made  # type: ignore[no-any-return]


def test_tensors_of_containers_and_globals_are_read_in_each_call() -> None:
    module, x = Holds(read_containers), torch.randn(2, 3)
    captured = Module(copy.deepcopy(module), {"fallback": "forbid"})
    for i in range(6):
        torch.testing.assert_close(captured(x), module(x))
        SHIFT.add_(1)
        for each in (module, captured):
            if i % 2:
                each.table["shift"] = torch.full((3,), float(i))
            else:
                each.tensors[0].mul_(2)
    assert len(captured.programs) == 3


def test_layers_that_are_not_registered_run_in_torch() -> None:
    module = Holds(lambda self, y: self.layers[0](y))
    captured = Module(module)
    with pytest.warns(FallbackWarning, match="that no module registers"):
        captured(torch.ones(2, 3)).sum().backward()
    assert module.layers[0].weight.grad is not None


def distill(self: Any, y: Tensor) -> Tensor:
    with torch.no_grad():
        target = self.layers[0](y)
    return y - target  # type: ignore[no-any-return]


def test_a_teacher_in_a_list_that_the_user_updates() -> None:
    module, x = Holds(distill), torch.randn(2, 3)
    captured = Module(copy.deepcopy(module), {"fallback": "forbid"})
    for _ in range(3):
        for each in (module, captured):
            each(x).square().sum().backward()
            with torch.no_grad():
                for teacher, student in zip(each.layers[0].parameters(), each.layer.parameters()):
                    teacher.lerp_(student, 0.5)
        torch.testing.assert_close(captured.layer.weight.grad, module.layer.weight.grad)
    assert len(captured.programs) == 1


def add_in_place(self: Any, y: Tensor) -> Tensor:
    self.attribute.add_(1)
    return y * self.attribute  # type: ignore[no-any-return]


def add_to_item(self: Any, y: Tensor) -> Tensor:
    self.tensors[0][0] += 1
    return y * self.tensors[0]  # type: ignore[no-any-return]


def set_item(self: Any, y: Tensor) -> Tensor:
    self.table["shift"][1] = 3.0
    return y * self.table["shift"]  # type: ignore[no-any-return]


def normalize(self: Any, y: Tensor) -> Any:
    with torch.no_grad():
        return y - self.layers[1](y)


@pytest.mark.parametrize("function", [add_in_place, add_to_item, set_item, normalize])
def test_changes_in_place_happen_once(function: Any) -> None:
    module, x = Holds(function), torch.randn(2, 3)
    captured = Module(copy.deepcopy(module))
    with pytest.warns(FallbackWarning, match="it changes a tensor in place that is no buffer"):
        for _ in range(3):
            torch.testing.assert_close(captured(x), module(x))
    torch.testing.assert_close(captured.attribute, module.attribute)
    torch.testing.assert_close(captured.table, module.table)
    states = [each.layers[1].state_dict() for each in (captured, module)]
    torch.testing.assert_close(*states)
