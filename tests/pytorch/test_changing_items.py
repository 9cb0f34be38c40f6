"""What a forward changes in Python: tensors are results, what changes once is captured after."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module
from onward.pytorch.onnx_export import to_onnx

Tensor = torch.Tensor


class Keeps(nn.Module):
    """A layer that keeps tensors of its last call."""

    features: Any = None

    def __init__(self, keep: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.keep = nn.Linear(3, 3), keep
        self.state, self.steps, self.is_ready = torch.zeros(3), 0, False
        self.table: Any = None

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        y: Tensor = self.layer(x)
        found = self.keep(self, y) if scale == 1.0 else self.keep(self, y, scale)  # type: ignore[call-arg]
        return y if found is None else found


def keep_tensor(self: Any, y: Tensor) -> None:
    self.features = y * y


def keep_several(self: Any, y: Tensor) -> None:
    self.features = {"y": y, "pair": (y.sum(), None, 3), "x": y.detach().relu()}


def follow(self: Any, y: Tensor) -> Any:
    self.state = 0.5 * self.state + y.detach().mean(0)
    return y * self.state


def carry(self: Any, y: Tensor) -> Any:
    self.state = torch.tanh(self.state.detach() + y.mean(0))
    return y + self.state


def gradients(module: Any, x: Tensor, loss: Callable[[Any, Tensor], Tensor]) -> list[Any]:
    found = []
    for _ in range(4):
        module.zero_grad()
        value = loss(module, module(x))
        value.backward()  # type: ignore[no-untyped-call]
        found += [value.detach(), *(p.grad.clone() for p in module.parameters())]
    return found


@pytest.mark.integration
@pytest.mark.parametrize(
    ("keep", "loss"),
    [
        (keep_tensor, lambda module, y: y.sum() + 0.1 * module.features.sum()),
        (keep_tensor, lambda module, y: y.sum()),
        (keep_several, lambda module, y: y.sum() + module.features["pair"][0] ** 2),
        (follow, lambda module, y: y.square().sum()),
        (carry, lambda module, y: (y * module.state).sum()),
    ],
)
def test_attributes_that_are_set_to_tensors_are_results(keep: Any, loss: Any) -> None:
    module, x = Keeps(keep), torch.randn(2, 3)
    captured = Module(copy.deepcopy(module), {"fallback": "forbid"})
    torch.testing.assert_close(gradients(captured, x, loss), gradients(module, x, loss))
    torch.testing.assert_close(captured.state, module.state)
    torch.testing.assert_close(captured.features, module.features)
    assert captured._captured.last is not None


def test_kept_tensors_of_other_sizes_and_that_the_user_clears() -> None:
    module = Keeps(keep_tensor)
    captured = Module(copy.deepcopy(module), {"fallback": "forbid"})
    for size in (2, 2, 3, 5, 7, 2):
        x = torch.randn(size, 3)
        torch.testing.assert_close(captured(x), module(x))
        torch.testing.assert_close(captured.features, module.features)
        captured.features = module.features = None
    assert len(captured.programs) == 2


class Gate(nn.Module):
    """A part that keeps an auxiliary loss."""

    aux_loss: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x).softmax(-1)
        self.aux_loss = y.mean(0).square().sum()
        return x * y


@pytest.mark.integration
def test_auxiliary_losses_of_submodules() -> None:
    module, x = nn.Sequential(Gate(), nn.Tanh(), Gate()), torch.randn(4, 3)
    captured = Module(copy.deepcopy(module), {"fallback": "forbid"})

    def loss(module: Any, y: Tensor) -> Any:
        losses: list[Any] = [each.aux_loss for each in module.modules() if isinstance(each, Gate)]
        return y.sum() + sum(losses)

    torch.testing.assert_close(gradients(captured, x, loss), gradients(module, x, loss))
    assert len(captured.programs) == 1


def initialize(self: Any, y: Tensor) -> Any:
    if not self.is_ready:
        self.is_ready = True
        with torch.no_grad():
            self.layer.bias.copy_(-y.mean(0))
    return y.tanh()


@pytest.mark.integration
def test_a_flag_that_changes_once_is_captured_in_the_second_call() -> None:
    module, x = Keeps(initialize), torch.randn(2, 3)
    captured = Module(copy.deepcopy(module), {"fallback": "forbid"})
    for _ in range(3):
        torch.testing.assert_close(captured(x), module(x))
    torch.testing.assert_close(captured.layer.bias, module.layer.bias)
    assert captured.is_ready and len(captured.programs) == 1


def make_table(self: Any, y: Tensor, scale: float = 1.0) -> Any:
    if self.steps != scale:
        self.steps, self.table = scale, torch.arange(3.0) * scale
    return y * self.table


def test_what_a_call_changes_is_not_constant_for_programs_of_other_calls() -> None:
    module, x = Keeps(make_table), torch.randn(2, 3)
    captured = Module(copy.deepcopy(module), {"fallback": "quiet"})
    for scale in (1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 1.0):
        torch.testing.assert_close(captured(x, scale), module(x, scale))
    assert captured.programs


def test_attributes_that_the_user_replaces_by_other_tensors() -> None:
    def add(self: Any, y: Tensor) -> Any:
        return y * self.state

    module, x = Keeps(add), torch.randn(2, 3)
    captured = Module(copy.deepcopy(module), {"fallback": "forbid"})
    states = (torch.ones(3), torch.ones(2, 3), torch.ones(1), torch.ones(3, requires_grad=True))
    for state in (*states, torch.ones(3).double()):
        found = []
        for each in (module, captured):
            each.state = state.detach().clone().requires_grad_(state.requires_grad)
            y = each(x)
            y.sum().backward()
            found.append((y, each.state.grad))
        torch.testing.assert_close(found[1], found[0])


def grow(self: Any, y: Tensor) -> Any:
    if len(y) > self.steps:
        self.steps, self.table = len(y), torch.arange(float(len(y)))[:, None]
    return y * self.table[: len(y)]


def fill(self: Any, y: Tensor) -> Any:
    if len(y) not in self.tables:
        self.tables[len(y)] = torch.arange(float(len(y)))[:, None]
    return y * self.tables[len(y)]


@pytest.mark.integration
@pytest.mark.parametrize("function", [grow, fill])
def test_caches_of_tables_for_sizes(function: Any) -> None:
    module: Any = Keeps(function)
    module.tables = {}
    captured = Module(copy.deepcopy(module), {"fallback": "forbid"})
    for size in (2, 3, 4, 3, 5, 3, 6, 6, 2):
        x = torch.randn(size, 3)
        torch.testing.assert_close(captured(x), module(x))
    assert captured._captured.last is not None


class Anneals(nn.Module):
    """Counts its steps in training, and tells its part."""

    def __init__(self) -> None:
        super().__init__()
        self.part: Any = nn.Sequential(Scaled(), nn.Tanh())
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            self.part[0].scale = 1 / self.steps
        return self.part(x) / (1 + self.steps)  # type: ignore[no-any-return]


class Scaled(nn.Module):
    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale  # type: ignore[no-any-return]


@pytest.mark.integration
def test_programs_of_other_modes_and_of_parts_see_what_training_changes() -> None:
    module, x = Anneals(), torch.randn(2, 3)
    captured = Module(copy.deepcopy(module))
    with pytest.warns(FallbackWarning, match="it changes its attribute .*steps"):
        for i in range(9):
            for each in (module, captured):
                each.train(i % 3 != 2)
            torch.testing.assert_close(captured(x), module(x))


def test_what_is_read_from_a_container_and_changed_runs_in_torch() -> None:
    def keep(self: Any, y: Tensor) -> Any:
        before = (y, y) if self.features is None else self.features
        self.features = (y.detach(), before[0].detach())
        return y + before[1]

    module, x = Keeps(keep), torch.randn(2, 3)
    captured = Module(copy.deepcopy(module))
    with pytest.warns(FallbackWarning, match="it reads its attribute features"):
        for _ in range(4):
            torch.testing.assert_close(captured(x), module(x))
            x = x + 1


@pytest.mark.integration
def test_an_export_leaves_changes_of_attributes_out() -> None:
    module = Keeps(keep_tensor)
    assert len(to_onnx(module, torch.ones(2, 3)).graph.outputs) == 1
    assert module.features is None
