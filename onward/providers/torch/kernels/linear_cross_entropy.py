"""A linear layer and its softmax cross entropy with all gradients, without keeping the scores.

    scores = x w' + b,  loss = Σ factor_i (log Σ exp(scores_i) - scores_i[label_i])

The scores of a vocabulary are the largest tensor of a language model. Rows are computed in chunks:
the gradient of a chunk's scores replaces them in their memory, and is multiplied at once. The
operator is private (domain `onward.torch`): providers/torch/fused_cross_entropy.py writes it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.lazy import LazyModule
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.private_domain import DOMAIN

if TYPE_CHECKING:
    from onward.providers.torch.kernels import softmax_rows
else:  # Triton comes with torch for GPUs
    softmax_rows = LazyModule("onward.providers.torch.kernels.softmax_rows")

kernel = OpTable()

CHUNK = 1 << 29  # bytes of scores at a time
_ALIGNED = 64  # columns: matrix products of 16-bit types need rows that start at 16 bytes
NO_LABEL = -(1 << 62)  # an ignored label where none is ignored


@kernel("LinearCrossEntropy", domain=DOMAIN)
def linear_cross_entropy(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    labels: Tensor,
    dy: Tensor,
    *,
    ignore_index: int | None = None,
    reduction: str,
    transposed: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """loss, dx, dw and db; w is (classes, size), or (size, classes) if `transposed`"""
    rows = x.reshape(-1, x.shape[-1])
    weight = w.t() if transposed else w
    ignored = NO_LABEL if ignore_index is None else ignore_index
    given = (rows.contiguous(), weight.contiguous(), labels.reshape(-1).long(), dy.float())
    loss, dx, dw, db = torch.ops.onward.linear_cross_entropy(
        *given, None if b is None else b.contiguous(), ignored, reduction == "mean", CHUNK
    )
    dw = dw.t() if transposed else dw
    return loss, dx.reshape(x.shape), dw, None if b is None else db


@torch.library.custom_op("onward::linear_cross_entropy", mutates_args=())
def _compute(
    x: Tensor,  # (rows, size)
    w: Tensor,  # (classes, size)
    labels: Tensor,  # (rows,)
    dy: Tensor,
    b: Tensor | None,
    ignored: int,
    mean: bool,
    most_bytes: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    classes, count = len(w), len(x)
    counted = (labels != ignored).sum().clamp(min=1).float() if mean else dy.new_ones(())
    factor = (dy.reshape(()) / counted).float()
    padding = -classes % _ALIGNED if x.is_cuda else 0
    weight = F.pad(w, (0, 0, 0, padding)) if padding else w
    columns = classes + padding
    chunk = max(1, math.ceil(count / math.ceil(count * columns * x.itemsize / most_bytes or 1)))
    losses = torch.empty(count, dtype=torch.float32, device=x.device)
    dx = torch.empty_like(x)
    dw = torch.zeros_like(weight, dtype=torch.promote_types(w.dtype, torch.float32))
    db = torch.zeros(columns if b is not None else 0, dtype=dw.dtype, device=x.device)
    buffer = x.new_empty((min(chunk, count), columns))
    for first in range(0, count, chunk):
        part = slice(first, min(first + chunk, count))
        scores = buffer[: part.stop - first]
        torch.mm(x[part], weight.t(), out=scores)
        if b is not None:
            scores[:, :classes] += b
        _gradients_(scores, labels[part], factor, losses[part], classes, ignored)
        torch.mm(scores, weight, out=dx[part])
        _add_product(dw, scores, x[part])
        if b is not None:
            db += scores.sum(0, dtype=dw.dtype)
    loss = losses.sum() / counted
    return loss, dx, dw[:classes].to(w.dtype), db[:classes].to(w.dtype)


@_compute.register_fake
def _(
    x: Tensor, w: Tensor, labels: Tensor, dy: Tensor, b: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss = x.new_empty((), dtype=torch.float32)
    return loss, torch.empty_like(x), torch.empty_like(w), w.new_empty(0 if b is None else len(w))


def _add_product(total: Tensor, scores: Tensor, x: Tensor) -> None:
    """total += scores' x, in the total's type."""
    if scores.is_cuda and total.dtype != scores.dtype:
        torch.ops.aten.addmm.dtype_out(
            total, scores.t(), x, total.dtype, out=total
        )  # products of 16-bit types, added in float32
    else:
        total.addmm_(scores.t().to(total.dtype), x.to(total.dtype))


def _gradients_(
    scores: Tensor, labels: Tensor, factor: Tensor, losses: Tensor, classes: int, ignored: int
) -> None:
    """Replace scores by their gradients; write the loss of each row."""
    if scores.is_cuda:
        softmax_rows.softmax_gradients_(scores, labels, factor, losses, classes, ignored)
        return
    kept = labels != ignored
    is_valid = (labels >= 0) & (labels < classes)
    places = torch.where(is_valid, labels, 0).unsqueeze(1)
    log_prob = scores.float().log_softmax(1)
    picked = torch.where(is_valid, -log_prob.gather(1, places).squeeze(1), torch.nan)
    losses.copy_(torch.where(kept, picked, 0))
    gradient = log_prob.exp().scatter_add(1, places, -torch.ones_like(places, dtype=torch.float32))
    scores.copy_(torch.where(kept.unsqueeze(1), gradient * factor, 0))
