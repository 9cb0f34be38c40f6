"""Linear layers in 8-bit floats (passes/float8_functions.py): products of torch._scaled_mm on CUDA.

Elsewhere the rounded numbers are multiplied in float32: the same numbers, slowly.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch

from onward.graph.operator_table import OpTable
from onward.graph.scopes import COMPOSITES
from onward.lazy import LazyModule
from onward.passes.float8_functions import (
    FLOAT8_LINEAR,
    FLOAT8_LINEAR_GRAD,
    LARGEST_E4M3,
    LARGEST_E5M2,
)
from onward.providers.torch.dtypes import Tensor

if TYPE_CHECKING:
    from onward.providers.torch.kernels import packed_rows
else:  # Triton comes with torch for GPUs
    packed_rows = LazyModule("onward.providers.torch.kernels.packed_rows")

kernel = OpTable()
composite = functools.partial(kernel, domain=COMPOSITES)
_SUMMED = 16  # cuBLAS sums multiples of that many numbers


@composite(FLOAT8_LINEAR)
def float8_linear(x: Tensor, w: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y = (qx qw) sx sw, qx = round(x / sx), qw = round(w / sw)"""
    sx, sw, _ = scales.unbind()
    qx, qw = _to_e4m3(x, sx), _to_e4m3(w, sw)
    y = _product(_rows(qx), qw, [sx, sw], x.dtype, fast=True)
    largest = torch.stack([x.abs().amax(), w.abs().amax()]).to(torch.float32)
    return y.view(*x.shape[:-1], w.shape[1]), qx, qw, largest


@composite(FLOAT8_LINEAR_GRAD)
def float8_linear_grad(
    dy: Tensor, qx: Tensor, qw: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """dx = (q qw') s sw, dw = (qx' q) sx s, where q = round(dy / s)"""
    sx, sw, s = scales.unbind()
    q, x = _rows(_to_e5m2(dy, s)), _rows(qx)
    dx = _product(q, qw, [s, sw], dy.dtype, turned=(False, True)).view(qx.shape)
    dw = _product(x, q, [sx, s], dy.dtype, turned=(True, False))
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


def _product(
    a: Tensor,
    b: Tensor,
    scales: list[Tensor],
    dtype: torch.dtype,
    *,
    turned: tuple[bool, bool] = (False, False),
    fast: bool = False,
) -> Tensor:
    """a b sa sb in a 16-bit type, one of the matrices transposed or none.

    `fast`: sums with fewer bits, enough for a forward pass.
    """
    y: Tensor = torch.ops.onward.float8_product(a, b, *scales, *turned, dtype, fast)
    return y


# A compiler does not look into the operator. Inductor of torch 2.11 refuses scales without axes,
# and where it wrote the transposed numbers itself, some gradients of weights were not finite.
torch.library.define(
    "onward::float8_product",
    "(Tensor a, Tensor b, Tensor sa, Tensor sb, bool turn_a, bool turn_b, ScalarType dtype,"
    " bool fast) -> Tensor",
)


@torch.library.impl("onward::float8_product", "CompositeExplicitAutograd")
def _float8_product(
    a: Tensor,
    b: Tensor,
    sa: Tensor,
    sb: Tensor,
    turn_a: bool,
    turn_b: bool,
    dtype: torch.dtype,
    fast: bool,
) -> Tensor:
    a, b = _turned(a, turn_a), _turned(b, turn_b)
    if not a.is_cuda:
        return (a.to(torch.float32) @ b.to(torch.float32) * (sa * sb)).to(dtype)
    y: Tensor = torch._scaled_mm(  # takes rows of a, columns of b, scales at a tensor's start
        packed_rows.packed_rows(a, _SUMMED),
        packed_rows.packed_rows(b.t(), _SUMMED).t(),
        scale_a=sa.clone(),
        scale_b=sb.clone(),
        out_dtype=dtype,
        use_fast_accum=fast,
    )
    return y


@torch.library.register_fake("onward::float8_product")  # type: ignore[untyped-decorator]
def _shape_of_product(
    a: Tensor,
    b: Tensor,
    _sa: Tensor,
    _sb: Tensor,
    turn_a: bool,
    turn_b: bool,
    dtype: torch.dtype,
    _fast: bool,
) -> Tensor:
    return a.new_empty(a.shape[1 if turn_a else 0], b.shape[0 if turn_b else 1], dtype=dtype)


def _turned(x: Tensor, turned: bool) -> Tensor:
    return x.t() if turned else x
