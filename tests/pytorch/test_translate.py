"""The translation of a trace: each node is brought to the model's opset."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module
from tests.pytorch.eager import Calls, assert_as_eager


def mixed_tokens(x: Tensor) -> Tensor:
    return torch.fft.fft2(x, dim=(1, 2)).real


@pytest.mark.integration
def test_a_transform_along_an_inner_axis_has_its_gradient() -> None:
    assert_as_eager(Calls(mixed_tokens), torch.rand(2, 4, 8, requires_grad=True))


@pytest.mark.integration
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_grid_sample_is_captured_with_its_gradient(mode: str) -> None:
    def sample(x: Tensor, grid: Tensor) -> Tensor:
        return nn.functional.grid_sample(x, grid.tanh(), mode=mode, align_corners=False)

    torch.manual_seed(0)
    x = torch.rand(2, 3, 5, 6, requires_grad=True)
    assert_as_eager(Calls(sample), x, torch.randn(2, 4, 4, 2, requires_grad=True))


def fill_spectrum(x: Tensor) -> Tensor:
    low = torch.fft.rfft(x)
    kept = torch.zeros_like(low)
    kept[:, :2] = low[:, :2]
    return torch.fft.irfft(kept, n=x.shape[-1])


def test_a_trace_that_torch_cannot_interpret_runs_in_torch() -> None:
    x = torch.rand(2, 8, requires_grad=True)
    captured = Module(Calls(fill_spectrum))
    with pytest.warns(FallbackWarning, match="complex dtype"):
        found = captured(x)
    torch.testing.assert_close(found, fill_spectrum(x))
