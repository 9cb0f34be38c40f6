"""A wrapped module follows changes of the wrapped one: methods, items, submodules, parameters."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import onward


class Counted(nn.Module):
    """A module whose class replaces methods of nn.Module."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)
        self.place = ""

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x))

    def parameters(self, recurse: bool = True) -> Any:
        return self.head.parameters(recurse)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        self.place = str(args[0])
        return super().to(*args, **kwargs)

    def __contains__(self, name: str) -> bool:
        return name == "head"


def test_methods_that_the_class_replaces_are_used() -> None:
    module = onward.Module(Counted())
    assert len(list(module.parameters())) == 2
    assert module.to(torch.float64) is module and module.place == "torch.float64"
    assert module.body.weight.dtype == torch.float64
    assert "head" in module and "body" not in module


def test_items_of_a_container_are_set_and_deleted() -> None:
    module = onward.Module(nn.Sequential(nn.Linear(4, 3), nn.Tanh()))
    module[1] = nn.ReLU()
    assert isinstance(module.module[1], nn.ReLU)
    del module[1]
    assert len(module.module) == 1


@pytest.mark.integration
def test_a_submodule_that_is_exchanged_captures_again() -> None:
    bare = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    module, x = onward.Module(copy.deepcopy(bare)), torch.randn(2, 4)
    for place, layer in ((1, nn.Tanh()), (2, nn.Linear(4, 5))):
        module(x)
        module[place], bare[place] = copy.deepcopy(layer), layer
        torch.testing.assert_close(module(x), bare(x))


@pytest.mark.integration
def test_a_parameter_of_another_shape_captures_again() -> None:
    module, x = onward.Module(nn.Linear(4, 3)), torch.randn(2, 4)
    module(x)
    module.weight.data, module.bias.data = torch.randn(5, 4), torch.randn(5)
    torch.testing.assert_close(module(x), module.module(x))


@pytest.mark.integration
def test_weights_that_are_untied_get_gradients_of_their_own() -> None:
    bare = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    bare[2].weight = bare[0].weight
    module, x = onward.Module(copy.deepcopy(bare)), torch.randn(2, 4)
    module(x)
    for each in (module, bare):
        each[2].weight = nn.Parameter(each[0].weight.detach().clone())
        each(x).sum().backward()
    for ours, theirs in zip(module.parameters(), bare.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_meta_tensors_run_in_pytorch() -> None:
    module = onward.Module(nn.Linear(4, 3, device="meta"))
    assert module(torch.empty(2, 4, device="meta")).device.type == "meta"


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")  # the fallback, and that no input needs gradients
def test_backward_hooks_of_submodules_run_after_the_first_call() -> None:
    bare = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    module, x = onward.Module(copy.deepcopy(bare)), torch.randn(2, 4)
    module(x)
    for each in (module, bare):
        each[2].register_full_backward_pre_hook(lambda _, gradients: (2 * gradients[0],))
        each(x).sum().backward()
    torch.testing.assert_close(module[0].weight.grad, bare[0].weight.grad)
