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

_FEW_PRODUCTS = 1 << 18  # of numbers, in a product of two matrices


@kernel("MatMul")
@by_bits
@float32_on_cpu
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a b, as numpy multiplies"""
    if a.is_cpu or (a.is_floating_point() and not _is_small(a, b)):
        return torch.matmul(a, b)
    return _matmul_by_sums(a, b)


def _is_small(a: Tensor, b: Tensor) -> bool:
    """Whether a compiled sum on a GPU is faster than the library's product, and can be fused.

    In float32 cuBLAS takes up to 11 us for the head of a small network, a sum less than 2.
    """
    if not torch.compiler.is_compiling() or a.is_cpu or a.dtype is not torch.float32:
        return False
    return a.ndim == b.ndim == 2 and a.shape[0] * a.shape[1] * b.shape[1] <= _FEW_PRODUCTS


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
    if a.is_floating_point() and not _is_small(a, b):
        if c is not None:
            return torch.addmm(c, a, b, beta=beta, alpha=alpha)
        return torch.mm(a, b) if alpha == 1 else alpha * torch.mm(a, b)
    y = _scaled(alpha, matmul(a, b))
    return y if c is None else y + _scaled(beta, c)


@kernel("Linear", domain=DOMAIN)
@float32_on_cpu
def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """x w + b"""
    if _is_small(x, w):
        return _matmul_by_sums(x, w) + b
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
