"""torch.cov and torch.corrcoef in captures."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.pytorch.eager import Calls, assert_as_eager, assert_elementwise

COUNTS, WEIGHTS = torch.tensor([1, 2, 3, 1]), torch.tensor([0.1, 0.5, 0.2, 0.9])


@pytest.mark.parametrize(
    "function",
    [
        torch.cov,
        torch.corrcoef,
        lambda x: torch.cov(x[0]),
        lambda x: torch.cov(x, correction=0),
        lambda x: torch.cov(x, fweights=COUNTS),
        lambda x: torch.cov(x, fweights=COUNTS, aweights=WEIGHTS),
    ],
)
def test_covariances_are_those_of_torch(function: Any) -> None:
    assert_as_eager(Calls(function), torch.randn(3, 4).requires_grad_())


def test_a_trace_leaves_the_covariance_of_torch_as_it_is() -> None:
    kernels = dict(torch.ops.aten.cov.default.py_kernels)
    assert_elementwise(torch.cov, torch.randn(3, 4))
    assert torch.ops.aten.cov.default.py_kernels == kernels
