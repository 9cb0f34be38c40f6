"""CapturedModule: what a trace depends on, and what it refuses."""

from __future__ import annotations

import logging
import math
from concurrent.futures import ThreadPoolExecutor
from logging.handlers import BufferingHandler
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal, kl_divergence

from onward.pytorch.fallback import CannotCapture, FallbackWarning, refuse_custom_gradients
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


class Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy


class Layers(nn.Module):
    """Two layers; what is between them cannot be captured if `opaque`."""

    def __init__(self, opaque: bool) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.last, self.opaque = nn.Linear(3, 2), opaque

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(Opaque.apply(x) if self.opaque else x)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::onward.pytorch.fallback.FallbackWarning")
@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("replaced", ["", "first", "last"])
def test_a_forward_that_is_replaced_between_calls(opaque: bool, replaced: str) -> None:
    plain, x = Layers(opaque), torch.randn(4, 3)
    module = Module(plain)
    module(x)
    part = plain.get_submodule(replaced)
    before = part.forward
    part.forward = lambda x: -before(x)  # type: ignore[method-assign]
    for _ in range(2):
        torch.testing.assert_close(module(x), plain(x))
    del part.forward  # type: ignore[attr-defined]
    torch.testing.assert_close(module(x), plain(x))


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


@pytest.mark.integration
def test_arguments_that_may_change_run_in_pytorch() -> None:
    module = Module(Calls(lambda x, factors: x * float(sum(factors))))
    x, factors = torch.ones(1), np.ones(3)
    with pytest.warns(FallbackWarning, match=r"it takes .*ndarray'>, whose contents may change"):
        assert module(x, factors).item() == 3.0
    factors[:] = 2.0
    assert module(x, factors).item() == 6.0
    with pytest.warns(FallbackWarning, match=r"it takes .*set'>, whose contents may change"):
        assert module(x, {2, 3}).item() == 5.0
    assert module(x, {4}).item() == 4.0


@pytest.mark.integration
def test_constants_that_change_in_every_call_run_in_pytorch() -> None:
    module = Module(Calls(lambda x, number: x * number), {"max_programs": 2})
    x = torch.ones(1)
    with pytest.warns(FallbackWarning, match="captured for 2 different sizes and constants") as all:
        assert [module(x, i / 4).item() for i in range(8)] == [i / 4 for i in range(8)]
    assert len(all) == 1 and len(module.programs) == 2
    assert module(x, 0.25).item() == 0.25 and module._captured.last is not None


@pytest.mark.integration
def test_zeros_of_both_signs_and_nan_are_constants() -> None:
    module, x = Module(Calls(lambda x, number: x / torch.full((1,), number))), torch.ones(1)
    assert [module(x, 0.0).item(), module(x, -0.0).item()] == [math.inf, -math.inf]
    assert all(math.isnan(module(x, math.nan).item()) for _ in range(2))
    assert len(module.programs) == 3


@pytest.mark.integration
def test_threads_may_capture_at_the_same_time() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    captured = Module(module, {"fallback": "forbid"})
    inputs = [torch.randn(3 + i % 2, 4, requires_grad=True) for i in range(6)]

    def gradient(x: Tensor) -> Tensor:
        return torch.autograd.grad(captured(x).square().sum(), x)[0]

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(gradient, inputs))
    for x, dx in zip(inputs, found):
        torch.testing.assert_close(dx, torch.autograd.grad(module(x).square().sum(), x)[0])
    assert len(captured.programs) == 2  # for the first sizes, and for all others


class Doubled(torch.autograd.Function):
    """2 x, with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return 2 * dy


def test_a_capture_does_not_refuse_functions_of_other_threads() -> None:
    with ThreadPoolExecutor(1) as pool, refuse_custom_gradients():
        assert pool.submit(Doubled.apply, torch.ones(2)).result().tolist() == [2.0, 2.0]
        with pytest.raises(CannotCapture, match="it calls Doubled"):
            Doubled.apply(torch.ones(2))


def test_arguments_that_are_detached_get_no_gradient() -> None:
    weight, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    x = weight * 2
    x.square().sum().backward()  # type: ignore[no-untyped-call]
    captured = Module(Calls(lambda x, y: x.detach() * y), {"fallback": "forbid"})
    captured(x, y).sum().backward()  # the graph of x is gone
    assert y.grad is not None and y.grad.tolist() == [2.0] * 3


def test_a_capture_logs_no_warnings_of_torch_export() -> None:
    log, handler = logging.getLogger("torch._export.non_strict_utils"), BufferingHandler(100)
    log.addHandler(handler)
    try:
        Module(nn.Linear(3, 2))(torch.ones(1, 3))  # it warns of a size of 1
    finally:
        log.removeHandler(handler)
    assert not handler.buffer


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, scale = self.layer(x).chunk(2, -1)
        found, prior = Normal(mean, scale.exp()), Normal(torch.zeros(2), torch.ones(2))
        return found.log_prob(x[:, :2]), kl_divergence(found, prior)


def test_distributions_do_not_check_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "_validate_args", True)  # torch.compile turns it off
    assert_as_eager(Encoder(), torch.randn(2, 3))
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        Normal(torch.zeros(1), -torch.ones(1))


class Warming(nn.Module):
    """A module that counts its calls in a Python number."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * min(1.0, self.calls / 4)


def test_a_module_that_counts_its_calls_runs_in_torch() -> None:
    module = nn.Sequential(Warming())
    captured = Module(module)
    with pytest.warns(FallbackWarning, match="it changes its attribute 0.calls in every call"):
        found = [captured(torch.ones(1)) for _ in range(5)]
    assert torch.cat(found).tolist() == [0.25, 0.5, 0.75, 1.0, 1.0]
