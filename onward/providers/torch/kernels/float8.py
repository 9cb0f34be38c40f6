"""Linear layers in 8-bit floats (passes/float8_functions.py): products of torch._scaled_mm on CUDA.

Elsewhere the rounded numbers are multiplied in float32: the same numbers, slowly.
"""

from __future__ import annotations

import functools
import math

import torch

from onward.graph.operator_table import OpTable
from onward.graph.scopes import COMPOSITES
from onward.passes.float8_functions import (
    FLOAT8_LINEAR,
    FLOAT8_LINEAR_GRAD,
    LARGEST_E4M3,
    LARGEST_E5M2,
)
from onward.providers.torch.dtypes import Tensor

kernel = OpTable()
composite = functools.partial(kernel, domain=COMPOSITES)
_ROWS = 16  # the summed axis of a product must be a multiple of it


@composite(FLOAT8_LINEAR)
def float8_linear(x: Tensor, w: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y = (qx qw) sx sw, qx = round(x / sx), qw = round(w / sw)"""
    sx, sw, _ = scales.unbind()
    qx, qw = _to_e4m3(x, sx), _to_e4m3(w, sw)
    y = _product(_rows(qx), qw, sx, sw, x.dtype, fast=True)
    largest = torch.stack([x.abs().amax(), w.abs().amax()]).to(torch.float32)
    return y.view(*x.shape[:-1], w.shape[1]), qx, qw, largest


@composite(FLOAT8_LINEAR_GRAD)
def float8_linear_grad(
    dy: Tensor, qx: Tensor, qw: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """dx = (q qw') s sw, dw = (qx' q) sx s, where q = round(dy / s)"""
    sx, sw, s = scales.unbind()
    q, x = _rows(_to_e5m2(dy, s)), _rows(qx)
    dx = _product(q, qw.t(), s, sw, dy.dtype, fast=False).view(qx.shape)
    dw = _product(_filled(x).t(), _filled(q), sx, s, dy.dtype, fast=False)
    return dx, dw, dy.abs().amax().to(torch.float32).view(1)


def _to_e4m3(x: Tensor, scale: Tensor) -> Tensor:
    return _limited(x, scale, LARGEST_E4M3).to(torch.float8_e4m3fn)


def _to_e5m2(x: Tensor, scale: Tensor) -> Tensor:
    return _limited(x, scale, LARGEST_E5M2).to(torch.float8_e5m2)


def _limited(x: Tensor, scale: Tensor, largest: float) -> Tensor:
    """x / scale, cut off at the largest number of a type; NaN where it is infinite."""
    y = x.to(torch.float32) / scale
    return torch.where(y.abs() < math.inf, y.clamp(-largest, largest), math.nan)


def _rows(x: Tensor) -> Tensor:
    """x as a matrix, its last axis the columns."""
    return x.reshape(-1, x.shape[-1])


def _filled(x: Tensor) -> Tensor:
    """A matrix with rows of zeros added, up to a multiple of 16."""
    missing = -x.shape[0] % _ROWS
    if not missing:
        return x
    zeros = torch.zeros(missing, x.shape[1], dtype=torch.uint8, device=x.device)
    return torch.cat([x.view(torch.uint8), zeros]).view(x.dtype)


def _product(
    a: Tensor, b: Tensor, sa: Tensor, sb: Tensor, dtype: torch.dtype, fast: bool
) -> Tensor:
    """a b sa sb, in a 16-bit type; `fast`: sums with fewer bits, enough for a forward pass"""
    if not a.is_cuda:
        return (a.to(torch.float32) @ b.to(torch.float32) * (sa * sb)).to(dtype)
    # the kernels take rows of a, and columns of b
    columns = b.t().contiguous().t()
    y: Tensor = torch._scaled_mm(
        a.contiguous(),
        columns,
        scale_a=_alone(sa),
        scale_b=_alone(sb),
        out_dtype=dtype,
        use_fast_accum=fast,
    )
    return y


def _alone(scale: Tensor) -> Tensor:
    """A scale in a tensor of its own, (1, 1): cuBLAS takes none from the middle of a tensor.

    A compiler removes a copy, but not a limit. Inductor of torch 2.11 cannot compile a product
    whose scales have no axes.
    """
    return scale.clamp(min=0).view(1, 1)
