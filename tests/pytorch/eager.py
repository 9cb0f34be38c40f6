"""Compare onward.Module with the module that it wraps: results, and the gradients of everything."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from onward.pytorch.module import Module


class Calls(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def assert_as_eager(module: nn.Module, *args: Any) -> None:
    """Run a module and its capture once; nothing may fall back."""
    captured = Module(copy.deepcopy(module), {"fallback": "forbid"})
    others = copy.deepcopy(args)
    results = [each(*given) for each, given in ((module, args), (captured, others))]
    for result in results:
        pieces = result if isinstance(result, tuple) else (result,)
        sum((i + 1) * (piece * piece).sum() for i, piece in enumerate(pieces)).backward()
    torch.testing.assert_close(results[1], results[0])
    given = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    found = [x for x in others if isinstance(x, torch.Tensor) and x.requires_grad]
    for x, y in zip([*given, *module.parameters()], [*found, *captured.parameters()], strict=True):
        torch.testing.assert_close(y.grad, x.grad)


def assert_elementwise(function: Callable[..., Any], *args: torch.Tensor) -> None:
    """Compare results and gradients, each element with another cotangent; NaN equals NaN."""
    found = []
    for module in (Calls(function), Module(Calls(function), {"fallback": "forbid"})):
        given = [x.clone().requires_grad_() for x in args]
        y = module(*given)
        y.backward(torch.arange(1.0, y.numel() + 1).view(y.shape).to(y.dtype))
        found.append([y.detach(), *(x.grad for x in given)])
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, equal_nan=True)


def assert_results(function: Callable[..., Any], *args: torch.Tensor) -> None:
    """Compare the results of a function and of its capture; NaN equals NaN."""
    found = Module(Calls(function), {"fallback": "forbid"})(*args)
    torch.testing.assert_close(found, function(*args), equal_nan=True)
