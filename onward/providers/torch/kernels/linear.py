"""MatMul, Gemm, EyeLike, Trilu, and the private operator Linear (fused_linear.py)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Int, Tensor, torch_dtype
from onward.providers.torch.kernels.emulated_dtypes import by_bits, by_value
from onward.providers.torch.kernels.half_precision import float32_on_cpu
from onward.providers.torch.private_domain import DOMAIN

kernel = OpTable()


@kernel("MatMul")
@by_bits
@float32_on_cpu
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a b, as numpy multiplies"""
    if a.is_floating_point() or a.is_cpu:
        return torch.matmul(a, b)
    return _matmul_by_sums(a, b)


def _matmul_by_sums(a: Tensor, b: Tensor) -> Tensor:
    """sum_k a_ik b_kj, written out: on a GPU, torch multiplies no integer matrices."""
    if b.ndim == 1:
        return (a * b).sum(-1, dtype=a.dtype)
    return (a.unsqueeze(-1) * (b if a.ndim == 1 else b.unsqueeze(-3))).sum(-2, dtype=a.dtype)


@kernel("Gemm")
@by_value
@float32_on_cpu
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float,
    beta: float,
    transA: int,
    transB: int,
) -> Tensor:
    """alpha * a b + beta * c"""
    a, b = a.t() if transA else a, b.t() if transB else b
    if a.is_floating_point():
        if c is not None:
            return torch.addmm(c, a, b, beta=beta, alpha=alpha)
        return torch.mm(a, b) if alpha == 1 else alpha * torch.mm(a, b)
    y = _scaled(alpha, matmul(a, b))
    return y if c is None else y + _scaled(beta, c)


@kernel("Linear", domain=DOMAIN)
@float32_on_cpu
def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """x w + b"""
    return F.linear(x, w.t(), b)


def _scaled(factor: float, x: Tensor) -> Tensor:
    return x if factor == 1 else (factor * x.double()).to(x.dtype)


@kernel("EyeLike")
def eye_like(x: Tensor, *, dtype: int | None = None, k: int) -> Tensor:
    """1 where column = row + k, else 0"""
    rows, columns = (torch.arange(size, device=x.device) for size in x.shape)
    ones = columns == rows.unsqueeze(1) + k
    return ones.to(x.dtype if dtype is None else torch_dtype(dtype))


@kernel("Trilu")
@by_bits
def trilu(x: Tensor, k: Int | None = None, *, upper: int) -> Tensor:
    """The elements on and above (or below) the k-th diagonal, 0 elsewhere."""
    return torch.triu(x, k or 0) if upper else torch.tril(x, k or 0)
