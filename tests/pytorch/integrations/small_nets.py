"""Small modules, and what tests compare: gradients of the wrapped module and of the bare one."""

from __future__ import annotations

import copy

import torch
from torch import nn

BATCH = 6


def make_net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def make_batch(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows, and the class of each."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(BATCH, 4, generator=generator),
        torch.randint(3, (BATCH,), generator=generator),
    )


def bare(module: nn.Module) -> nn.Module:
    """A copy of a module that was not called yet, for PyTorch to run."""
    return copy.deepcopy(module)


def compute_gradients(
    module: nn.Module, x: torch.Tensor | None = None
) -> dict[str, torch.Tensor | None]:
    """The gradients of a loss with respect to each parameter; they are removed from the module."""
    module.zero_grad()
    module(make_batch()[0] if x is None else x).float().square().mean().backward()
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad()
    return found


def assert_close(
    found: dict[str, torch.Tensor | None],
    expected: dict[str, torch.Tensor | None],
    tolerance: float = 1e-5,
) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value is None:
            assert found[name] is None, name
        else:
            torch.testing.assert_close(found[name], value, atol=tolerance, rtol=tolerance)
