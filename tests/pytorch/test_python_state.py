"""What a forward changes in Python: it runs in PyTorch, and a trace leaves nothing behind."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module
from onward.pytorch.python_state import PythonState

Tensor = torch.Tensor
COUNTS = {"calls": 0}


class Settings:
    steps = 0


class Stateful(nn.Module):
    """A layer whose forward changes something of `self`."""

    def __init__(self, change: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(3, 3), change
        self.log: list[Any] = []
        self.known: dict[str, Any] = {}
        self.settings, self.state = Settings(), torch.zeros(3)
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        factor = self.change(self, y)
        return y if factor is None else y * factor


def count(self: Any, y: Tensor) -> int:
    self.count = getattr(self, "count", 0) + 1
    return int(self.count)


def count_in_object(self: Any, y: Tensor) -> int:
    self.settings.steps += 1
    return int(self.settings.steps)


def grow(self: Any, y: Tensor) -> int:
    self.log.append(1)
    return len(self.log)


def keep_in_list(self: Any, y: Tensor) -> None:
    self.log.append(y.detach())


def keep_in_dictionary(self: Any, y: Tensor) -> None:
    self.known["features"] = y


CHANGES = [count, count_in_object, grow, keep_in_list, keep_in_dictionary]


@pytest.mark.integration
@pytest.mark.parametrize("change", CHANGES)
def test_a_forward_that_changes_attributes_runs_in_torch(change: Any) -> None:
    module, x = Stateful(change), torch.randn(2, 3)
    captured = Module(copy.deepcopy(module))
    with pytest.warns(FallbackWarning, match="it changes its attribute"):
        for _ in range(3):
            torch.testing.assert_close(captured(x), module(x))
    for name in ("log", "known", "state"):
        torch.testing.assert_close(getattr(captured, name), getattr(module, name))
    assert captured.settings.steps == module.settings.steps
    assert type(vars(captured.module).get("features")) in (Tensor, type(None))


class CountsGlobally(Stateful):
    def forward(self, x: Tensor) -> Tensor:
        COUNTS["calls"] += 1
        return super().forward(x) * COUNTS["calls"]


def test_a_forward_that_changes_a_global_runs_in_torch() -> None:
    module = Module(CountsGlobally(lambda self, y: None))
    COUNTS["calls"] = 0
    with pytest.warns(FallbackWarning, match="it changes the global COUNTS.calls"):
        for _ in range(3):
            module(torch.ones(1, 3))
    assert COUNTS["calls"] == 3


@pytest.mark.integration
def test_attributes_that_are_set_once_are_constants_of_later_calls() -> None:
    def make(self: Any, y: Tensor) -> Tensor:
        if self.last is None:
            self.last = torch.arange(3.0)
        return self.last  # type: ignore[no-any-return]

    module, x = Stateful(make), torch.randn(2, 3)
    captured = Module(copy.deepcopy(module), {"fallback": "forbid"})
    for _ in range(3):
        torch.testing.assert_close(captured(x), module(x))
    assert len(captured.programs) == 1 and type(captured.last) is Tensor


@pytest.mark.integration
@pytest.mark.parametrize(
    "draw",
    [
        lambda self: random.random(),
        lambda self: np.random.rand(),
        lambda self: self.python.random(),
        lambda self: self.numpy.uniform(),
    ],
)
def test_a_forward_that_draws_in_python_runs_in_torch(draw: Callable[[Any], float]) -> None:
    module: Any = Stateful(lambda self, y: draw(self) < 0.5)
    module.python, module.numpy = random.Random(0), np.random.default_rng(0)
    captured = Module(copy.deepcopy(module))
    x, found = torch.randn(2, 3), []
    with pytest.warns(FallbackWarning, match="it draws random numbers in Python"):
        for each in (module, captured):
            random.seed(0)
            np.random.seed(0)
            found.append(torch.stack([each(x) for _ in range(8)]))
    torch.testing.assert_close(found[1], found[0])


def test_a_snapshot_restores_attributes_and_generators() -> None:
    module: Any = Stateful(count)
    module.log.append(1)
    state = PythonState(module)
    number = random.random()
    module.log.append(2)
    module.known["x"], module.last, module.new = 1, 2, 3
    del module.settings
    state.restore()
    assert (module.log, module.known, module.last) == ([1], {}, None)
    assert isinstance(module.settings, Settings) and not hasattr(module, "new")
    assert random.random() == number


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_do_not_count_as_changed(kind: Any) -> None:
    torch.manual_seed(0)
    layer, x = kind(3, 4), torch.randn(5, 2, 3)
    captured = Module(copy.deepcopy(layer), {"fallback": "forbid"})
    torch.testing.assert_close(captured(x)[0], layer(x)[0])
    assert len(captured.programs) == 1


class Made(dict[str, Any]):
    """A dictionary that makes its items."""

    def __getitem__(self, name: str) -> Any:
        raise AssertionError("a snapshot makes no items")


def test_a_snapshot_leaves_computed_items_alone() -> None:
    module = Stateful(count)
    module.known = Made(x=1)
    PythonState(module).restore()
    assert dict.__getitem__(module.known, "x") == 1
