"""Special functions that ONNX lacks: results and gradients of torch."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module
from tests.pytorch.eager import Calls, assert_elementwise, assert_results

NUMBERS = [-30.3, -3.3, -2.5, -1e-3, -1e-10, 1e-10, 1e-3, 0.3, 1.0, 1.5, 2.0, 6.0, 30.0, 300.0, 1e8]


@pytest.mark.parametrize("function", [torch.lgamma, torch.digamma, torch.erfinv])
def test_special_functions_are_those_of_torch(function: object) -> None:
    assert callable(function)
    x = torch.tensor(NUMBERS)
    if function is torch.erfinv:
        x = torch.tensor([-1.0, -0.999999, -0.9, -1e-10, 0.0, 0.1, 0.5, 0.9, 0.99999, 1.0])
    captured, x64 = Module(Calls(function), {"fallback": "forbid"}), x.double().requires_grad_()
    x32 = x.clone().requires_grad_()
    found, expected = captured(x32), function(x64)
    found.sum().backward()
    expected.sum().backward()
    assert x32.grad is not None and x64.grad is not None
    for a, b in ((found, expected), (x32.grad, x64.grad)):
        torch.testing.assert_close(a, b.float(), rtol=2e-5, atol=2e-5)


def test_special_functions_of_poles_and_infinities() -> None:
    assert_results(torch.lgamma, torch.tensor([0.0, -1.0, -2.0, inf, -inf, nan]))
    assert_results(torch.digamma, torch.tensor([0.0, -1.0, -2.0, inf, nan]))
    assert_results(torch.erfinv, torch.tensor([1.5, -2.0, nan]))


def test_special_functions_of_empty_tensors_and_of_integers() -> None:
    assert_elementwise(torch.lgamma, torch.ones(0, 3))
    assert_results(torch.lgamma, torch.tensor([1, 2, 7]))
    assert_results(torch.erfinv, torch.tensor([0.5, -0.25], dtype=torch.float16))


def test_special_functions_in_float64_run_in_torch() -> None:
    x = torch.tensor([0.5], dtype=torch.float64)
    with pytest.warns(FallbackWarning, match="torch.lgamma in float64 has no ONNX operators"):
        torch.testing.assert_close(Module(Calls(torch.lgamma))(x), torch.lgamma(x))
