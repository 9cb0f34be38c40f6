"""Losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Tensor

kernel = OpTable()


@kernel("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str,
) -> Tensor:
    """loss[n, d] = -weight[t] x[n, t, d], t = target[n, d]; the mean divides by the weights."""
    target = target.long()
    if x.dim() == 2 and x.dtype.itemsize > 2:
        nothing = -100  # not a valid label
        ignore_index = nothing if ignore_index is None else ignore_index
        return F.nll_loss(x, target, weight, ignore_index=ignore_index, reduction=reduction)
    # With more axes F.nll_loss adds up in an order that CUDA does not repeat; in a float16 its
    # count of the labels overflows.
    ignored = None if ignore_index is None else target == ignore_index
    if ignored is not None:  # it may be outside of the classes
        target = target.masked_fill(ignored, 0)
    loss = -x.gather(1, target.unsqueeze(1)).squeeze(1)
    weights = torch.ones_like(loss) if weight is None else weight[target]
    if ignored is not None:
        weights = weights.masked_fill(ignored, 0)
        loss = loss.masked_fill(ignored, 0)
    if weight is not None:
        loss = loss * weights
    if reduction == "none":
        return loss
    wide = torch.float32 if x.dtype.itemsize == 2 else x.dtype
    total = loss.sum(dtype=wide)
    if reduction == "mean":
        total = total / weights.sum(dtype=wide)
    return total.to(x.dtype)


@kernel("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str,
) -> tuple[Tensor, Tensor]:
    """The negative log likelihood of log_prob = log softmax(scores), and log_prob itself."""
    log_prob = F.log_softmax(scores, dim=1)
    loss = negative_log_likelihood_loss(
        log_prob, labels, weights, ignore_index=ignore_index, reduction=reduction
    )
    return loss, log_prob
