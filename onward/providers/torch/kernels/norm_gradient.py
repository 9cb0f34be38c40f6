"""The gradient of a layer or RMS normalisation, with the sums and dropout around it.

    dy = Σ terms;  dx = norm'(dy) + residual;  masked = dropout'(dx);  total = Σ rows of masked

A compiler writes it in several kernels, and keeps the normalised input in float32 from the forward
pass to the backward. As one operator it reads the input itself (norm_rows.py). The operator is
private (domain `onward.torch`): providers/torch/fused_norm_gradient.py writes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from onward.graph.operator_table import OpTable
from onward.lazy import LazyModule
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.kernels import random
from onward.providers.torch.private_domain import DOMAIN

if TYPE_CHECKING:
    from onward.providers.torch.kernels import norm_rows
else:  # Triton comes with torch for GPUs
    norm_rows = LazyModule("onward.providers.torch.kernels.norm_rows")

kernel = OpTable()

MOST_COLUMNS = 8192  # of a row, which is in registers as a whole
MOST_TERMS = 4

Results = tuple[Tensor, Tensor, Tensor]


@kernel("NormGradient", domain=DOMAIN)
def norm_gradient(
    x: Tensor,
    scale: Tensor,
    mean: Tensor | None,
    inv: Tensor | None,
    residual: Tensor | None,
    key: Tensor | None,
    *terms: Tensor,
    axis: int,
    epsilon: float,
    node: int = 0,
    ratio: float = 0.0,
    factor: float = 1.0,
) -> tuple[Tensor, ...]:
    """dx, dscale, db, masked and the sum of its rows"""
    shape = x.shape[axis:]
    size = (x.shape[:axis].numel(), shape.numel())
    rows = [each.reshape(size).contiguous() for each in (x, *terms)]
    last = None if residual is None else residual.reshape(size).contiguous()
    numbers = [None if each is None else each.reshape(-1).float() for each in (mean, inv)]
    dx, masked, sums = torch.ops.onward.norm_gradient(
        *(rows[0], scale.reshape(-1).contiguous(), *numbers, last, key, rows[1:]),
        *(epsilon, random.own_number(node), ratio, factor),
    )
    dscale, db, total = (each.reshape(shape).to(scale.dtype) for each in sums)
    if key is not None:
        masked = masked.reshape(x.shape)
    return dx.reshape(x.shape), dscale, db, masked, total


@torch.library.custom_op("onward::norm_gradient", mutates_args=())
def _compute(
    x: Tensor,  # (rows, columns)
    scale: Tensor,  # (columns,)
    mean: Tensor | None,  # (rows,): None for RMS
    inv: Tensor | None,
    residual: Tensor | None,
    key: Tensor | None,  # of dropout's numbers: None without dropout
    terms: list[Tensor],
    epsilon: float,
    own: int,
    ratio: float,
    factor: float,
) -> Results:
    if x.is_cuda:
        draw = (key, own, ratio, factor)
        return norm_rows.norm_gradients(x, scale, mean, inv, residual, terms, epsilon, *draw)
    dy = torch.stack([each.float() for each in terms]).sum(0)
    z = x.float()
    if inv is None:
        inv = torch.rsqrt(z.square().mean(1) + epsilon)
    xhat = (z if mean is None else z - mean.unsqueeze(1)) * inv.unsqueeze(1)
    g = dy * scale.float()
    dx = g - xhat * (g * xhat).mean(1, keepdim=True)
    if mean is not None:
        dx = dx - g.mean(1, keepdim=True)
    dx = dx * inv.unsqueeze(1)
    if residual is not None:
        dx = dx + residual.float()
    dx = dx.to(x.dtype)
    masked, sums = x.new_empty((0, x.shape[1])), [(dy * xhat).sum(0), dy.sum(0)]
    if key is not None:
        kept = random.numbers(key, x.shape, own, x.device) >= ratio
        masked = (dx.float() * kept * factor).to(x.dtype)
    return dx, masked, torch.stack([*sums, masked.float().sum(0)])


@_compute.register_fake
def _(
    x: Tensor, scale: Tensor, mean: Any, inv: Any, residual: Any, key: Tensor | None, *_: Any
) -> Results:
    masked = x.new_empty((0, x.shape[1])) if key is None else torch.empty_like(x)
    return torch.empty_like(x), masked, x.new_empty((3, x.shape[1]), dtype=torch.float32)
