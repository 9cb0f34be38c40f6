"""Sixteen-bit floats on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onward.providers.torch.kernels.half_precision import float32_on_cpu


@float32_on_cpu
def kernel(x: Any, *others: Any, twice: int = 1) -> Any:
    return x.dtype, [y.dtype for y in others if y is not None], x * twice


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kernel_runs_in_float32_and_returns_half_precision(dtype: torch.dtype) -> None:
    x = torch.ones(2, dtype=dtype)
    seen, others, y = kernel(x, x, None, torch.ones(2, dtype=torch.int8), twice=2)
    assert seen == torch.float32
    assert others == [torch.float32, torch.int8]
    assert y.dtype == dtype and y.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_other_types_are_not_converted(dtype: torch.dtype) -> None:
    seen, _, y = kernel(torch.ones(2, dtype=dtype))
    assert seen == y.dtype == dtype


def test_single_result_is_converted() -> None:
    double = float32_on_cpu(lambda x: 2 * x)
    assert double(torch.ones(2, dtype=torch.float16)).dtype == torch.float16
