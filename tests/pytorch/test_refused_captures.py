"""What a graph would do differently from PyTorch runs in PyTorch, or is refused in words."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.utils import rnn

from onward.errors import OptionError
from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module
from tests.pytorch.eager import Calls

Tensor = torch.Tensor


def scale_gradient(x: Tensor) -> Tensor:
    y = 3 * x
    y.register_hook(lambda dy: 2 * dy)  # type: ignore[no-untyped-call]
    return y


def without_gradient(x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = 3 * x
    return x + y


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (scale_gradient, "it calls register_hook of a tensor"),
        (without_gradient, "it enters inference_mode"),
    ],
)
def test_gradients_that_a_trace_does_not_see(function: Any, reason: str) -> None:
    gradients = []
    with pytest.warns(FallbackWarning, match=reason):
        for module in (function, Module(Calls(function))):
            x = torch.ones(3, requires_grad=True)
            module(x).sum().backward()
            gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_an_argument_that_requires_gradients_in_the_forward() -> None:
    x = torch.ones(3)
    with pytest.warns(FallbackWarning, match="it calls requires_grad_ of an argument"):
        Module(Calls(lambda x: 3 * x.requires_grad_()))(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0] * 3


def test_complex_numbers_run_in_torch() -> None:
    x = torch.randn(4)
    with pytest.warns(FallbackWarning, match="it returns complex numbers"):
        torch.testing.assert_close(Module(Calls(torch.fft.fft))(x), torch.fft.fft(x))
    z = torch.complex(x, -x)
    with pytest.warns(FallbackWarning, match="it reads complex numbers"):
        torch.testing.assert_close(Module(Calls(torch.abs))(z), z.abs())


class Follower(nn.Module):
    """A module that replaces its buffers in each call."""

    mean: Tensor
    first: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("first", None)

    def forward(self, x: Tensor) -> Tensor:
        self.first = x.mean(0) if self.first is None else self.first
        self.mean = 0.5 * self.mean + x.mean(0)
        return x - self.mean + self.first


def test_buffers_that_are_replaced() -> None:
    plain, module = Follower(), Module(Follower())
    with pytest.warns(FallbackWarning, match="it replaces its buffer"):
        for i in range(3):
            x = torch.full((2, 3), float(i))
            torch.testing.assert_close(module(x), plain(x))
    torch.testing.assert_close(dict(module.named_buffers()), dict(plain.named_buffers()))


def test_running_statistics_of_instance_norm() -> None:
    layers = [nn.InstanceNorm1d(3, track_running_stats=True) for _ in range(2)]
    module, x = Module(layers[0]), torch.randn(2, 3, 5)
    with pytest.warns(FallbackWarning, match="InstanceNorm with track_running_stats"):
        torch.testing.assert_close(module(x), layers[1](x))
    torch.testing.assert_close(module.state_dict(), layers[1].state_dict())
    module.eval()
    torch.testing.assert_close(module(x), layers[1].eval()(x))
    assert len(module.programs) == 1


def test_a_forward_that_seeds_torch() -> None:
    def draw(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return x + torch.rand(3)

    module, x = Module(Calls(draw)), torch.zeros(3)
    with pytest.warns(FallbackWarning, match="it seeds torch's generator"):
        assert torch.equal(module(x), draw(x)) and torch.equal(module(x), draw(x))


@pytest.mark.integration
def test_arguments_that_share_memory_and_are_changed_in_place() -> None:
    module, x = Module(Calls(lambda x, y: x.add_(1) * y), {"fallback": "forbid"}), torch.ones(3)
    assert module(x, torch.ones(3)).tolist() == [2.0] * 3
    for _ in range(2):
        x = torch.ones(3)
        assert module(x, x).tolist() == [4.0] * 3
    assert module(x, torch.ones(3)).tolist() == [3.0] * 3
    assert len(module.programs) == 1


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_a_cause_of_fallbacks_is_named_once() -> None:
    parts = [nn.Sequential(nn.Linear(2, 2), Branch()) for _ in range(3)]
    module = Module(nn.Sequential(*parts))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        module(torch.ones(1, 2))
    assert len(found) == 1 and str(found[0].message).startswith("Sequential falls back")
    assert sorted(module.fallbacks) == ["", "0", "1", "2"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch scripts its rules of forward mode
def test_forward_mode_runs_in_torch() -> None:
    module, x = Module(nn.Linear(3, 2)), torch.ones(1, 3)
    with forward_ad.dual_level():
        dual: Any = forward_ad
        found = dual.unpack_dual(module(dual.make_dual(x, x))).tangent
    torch.testing.assert_close(found, x @ module.weight.T)


def test_batched_gradients_are_refused_in_words() -> None:
    module, x = Module(nn.Linear(3, 2)), torch.ones(1, 3, requires_grad=True)
    with pytest.raises(OptionError, match=r"(?s)does not run under vmap.*module\.module"):
        torch.autograd.grad(module(x), x, torch.eye(2).reshape(2, 1, 2), is_grads_batched=True)


def test_a_call_in_inference_mode_is_captured() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(4, 2)
    x = torch.randn(3, 4)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("error", FallbackWarning)
        y = Module(plain)(x)
        torch.testing.assert_close(y, plain(x))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (torch.linalg.matrix_exp, "there is no translation of aten.linalg_matrix_exp$"),
        (
            lambda x: functional.ctc_loss(
                *(x[:, None].log_softmax(2), torch.tensor([[1, 2]])),
                *(torch.tensor([4]), torch.tensor([2])),
            ),
            "the shape of a result of aten._ctc_loss.Tensor depends on the values of tensors$",
        ),
    ],
)
def test_what_has_no_operators_is_named(function: Any, reason: str) -> None:
    x = torch.randn(4, 4)
    with pytest.warns(FallbackWarning, match=reason):
        torch.testing.assert_close(Module(Calls(function))(x), function(x))


class Penalised(nn.Module):
    """A critic with the penalty of its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        scores = self.critic(x)
        (dx,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        return scores.mean() + dx.square().mean()


@pytest.mark.parametrize("is_inner", [False, True])
def test_a_forward_that_differentiates_a_gradient_runs_in_torch(is_inner: bool) -> None:
    torch.manual_seed(0)
    module: nn.Module = Penalised()
    if is_inner:  # what is around it is captured
        module = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), module)
    captured, x, found = Module(module), torch.randn(3, 4), []
    with pytest.warns(FallbackWarning, match=r"its forward computes gradients \(torch.autograd\)"):
        captured(x)
    assert len(captured.programs) == is_inner
    for each in (module, captured):
        each.zero_grad()
        each(x).backward()
        found.append([p.grad for p in module.parameters()])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("is_argument", [False, True])
def test_packed_sequences_run_in_torch(is_argument: bool) -> None:
    layer, x, lengths = nn.GRU(2, 3), torch.randn(4, 2, 2), torch.tensor([2, 4])

    def run(x: Any) -> Tensor:
        packed = x if is_argument else rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        found: Tensor = layer(packed)[1]
        return found

    given = rnn.pack_padded_sequence(x, lengths, enforce_sorted=False) if is_argument else x
    captured = Module(Calls(run))
    with pytest.warns(FallbackWarning, match="runs a recurrent layer on packed sequences"):
        torch.testing.assert_close(captured(given), run(given))
