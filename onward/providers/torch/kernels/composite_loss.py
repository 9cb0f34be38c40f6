"""Gradients of losses over classes."""

from __future__ import annotations

import functools

import torch

from onward.graph.operator_table import OpTable
from onward.graph.scopes import COMPOSITES
from onward.providers.torch.composite_calls import accepts_if
from onward.providers.torch.dtypes import Ints, Tensor, Unused
from onward.providers.torch.kernels.composite_outputs import (
    are_absent,
    requested_gradients,
)

kernel = OpTable()
composite = functools.partial(kernel, domain=COMPOSITES)

_DLOG = 6  # the index of log_prob's gradient


@composite("SoftmaxCrossEntropyLossGrad")
@accepts_if(lambda call: are_absent(call, _DLOG) and set(requested_gradients(call)) == {0})
def softmax_cross_entropy_loss_grad(
    scores: Unused,
    labels: Tensor,
    weights: Tensor | None,
    loss: Unused,
    log_prob: Tensor,
    dy: Tensor,
    *,
    ignore_index: int | None = None,
    reduction: str,
    wrt: Ints,
) -> tuple[Tensor]:
    """dscores = (exp(log_prob) - one hot) weight dy, with dy / Σ weight for the mean"""
    labels = labels.long()
    kept = None if ignore_index is None else labels != ignore_index
    if kept is not None:  # it may be outside of the classes
        labels = torch.where(kept, labels, 0)
    share = _share(log_prob, labels, weights, kept, dy, reduction).unsqueeze(1)  # (batch, 1, ...)
    places = labels.unsqueeze(1)
    if torch.compiler.is_compiling():  # a comparison is one pass, a scatter two
        sizes = [1, -1, *[1] * (log_prob.dim() - 2)]
        classes = torch.arange(log_prob.shape[1], device=log_prob.device).reshape(sizes)
        prob = log_prob.to(share.dtype).exp()
        dscores = torch.where(classes == places, prob - 1, prob) * share
        return (dscores.to(log_prob.dtype),)
    dscores = log_prob.exp().mul_(share.to(log_prob.dtype))
    picked = dscores.gather(1, places) - share
    return (dscores.scatter_(1, places, picked.to(dscores.dtype)),)


def _share(
    log_prob: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    kept: Tensor | None,
    dy: Tensor,
    reduction: str,
) -> Tensor:
    """The factor of each label's loss, in float32 or wider: (batch, ...)."""
    wide = torch.float32 if log_prob.dtype.itemsize == 2 else log_prob.dtype
    weight = None if weights is None else weights.to(wide)[labels]
    if kept is not None:
        weight = kept.to(wide) if weight is None else torch.where(kept, weight, 0)
    dy = dy.to(wide)
    if reduction == "mean" and weight is None:
        dy = dy / labels.numel()
    elif reduction == "mean" and weight is not None:
        total = weight.sum()
        dy = dy / torch.where(total == 0, 1, total)  # without a counted label, the gradient is 0
    return (dy if weight is None else weight * dy).expand(labels.shape)
