"""torch.cov and torch.corrcoef in a trace: torch's own checks its divisor on the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

_KEY = DispatchKey.CompositeImplicitAutograd


@contextmanager
def traced_covariance() -> Iterator[None]:
    """While entered, covariances are traced as sums and a matrix product."""
    operator: Any = torch.ops.aten.cov.default
    replaced = operator.py_kernels.get(_KEY)
    operator.py_kernels[_KEY] = _covariance
    operator._dispatch_cache.clear()
    try:
        yield
    finally:
        del operator.py_kernels[_KEY]
        if replaced is not None:
            operator.py_kernels[_KEY] = replaced
        operator._dispatch_cache.clear()


def _covariance(
    x: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """sum of w (x - mean) (x - mean)^T / (sum of w - correction); rows are variables"""
    rows = x if x.dim() == 2 else x.reshape(1, -1)
    w = fweights if aweights is None else aweights
    if fweights is not None and aweights is not None:
        w = fweights * aweights
    if w is None:
        total: Any = rows.shape[1]
        weighted, divisor = rows, total - correction
    else:
        total, weighted = w.sum(), rows * w
        share = 1 if aweights is None else (w * aweights).sum() / total
        divisor = total - correction * share
    centred = rows - weighted.sum(1, keepdim=True) / total
    others = centred if w is None else centred * w
    covariance: Tensor = torch.mm(centred, others.t().conj()) / divisor
    return covariance.squeeze()
