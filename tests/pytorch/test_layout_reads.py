"""Forwards that read strides run on graphs for contiguous tensors, and in PyTorch for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module
from tests.pytorch.eager import Calls, assert_as_eager

Tensor = torch.Tensor


def test_as_strided_of_contiguous_tensors_is_captured() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    assert_as_eager(Calls(lambda x: (2 * x).as_strided((2, 3), (4, 1), 1)), x)
    assert_as_eager(Calls(lambda x: (2 * x)[1:].as_strided((2, 2), (1, 1), 4)), x)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: (2 * x).t().as_strided((3, 2), (2, 1)), "not contiguous"),
        (lambda x: (2 * x)[:1].expand(5, 4).as_strided((2, 2), (0, 1)), "not contiguous"),
        (lambda x: (2 * x)[1:].as_strided((2, 2), (1, 1), 0), "outside of the tensor"),
    ],
)
def test_as_strided_of_other_layouts_runs_in_torch(
    function: Callable[[Tensor], Tensor], reason: str
) -> None:
    x = torch.randn(3, 4)
    with pytest.warns(FallbackWarning, match=f"it calls as_strided .*{reason}"):
        torch.testing.assert_close(Module(Calls(function))(x), function(x))


@pytest.mark.integration
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.as_strided(x, (3, 2), (2, 1)) * 3,
        lambda x: x if x.is_contiguous() else 2 * x,
        lambda x: x * x.stride(0),
        lambda x: x * x.storage_offset(),
    ],
)
def test_a_program_that_reads_layouts_takes_contiguous_tensors_alone(function: Any) -> None:
    module = Module(Calls(function))
    x = torch.randn(3, 4)
    others = (torch.randn(6, 4)[3:], torch.randn(4, 3).t(), torch.randn(6, 8)[::2, ::2])
    torch.testing.assert_close(module(x), function(x))
    with pytest.warns(FallbackWarning, match="it reads strides"):
        for other in others:
            torch.testing.assert_close(module(other), function(other))
    torch.testing.assert_close(module(x), function(x))
    assert module._captured.last is not None


def test_a_program_that_reads_no_layouts_takes_all() -> None:
    module = Module(Calls(lambda x: 2 * x), {"fallback": "forbid"})
    for x in (torch.randn(3, 4), torch.randn(4, 3).t()):
        torch.testing.assert_close(module(x), 2 * x)
    assert len(module.programs) == 1
