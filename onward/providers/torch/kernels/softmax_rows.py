"""The gradient of a softmax cross entropy over rows, in place, as one Triton kernel."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_BLOCK, _WARPS = 4096, 32  # the fastest of those tried on an H200


@triton.jit  # type: ignore[untyped-decorator]
def _rows(  # type: ignore[no-untyped-def]
    scores,
    labels,
    factor,
    losses,
    classes,
    columns,
    ignored,
    block: tl.constexpr,
):
    """scores becomes (softmax(scores) - one hot) factor, and losses its cross entropy."""
    log2_e: tl.constexpr = 1.4426950408889634
    row = tl.program_id(0).to(tl.int64)
    start = scores + row * columns
    label = tl.load(labels + row)
    lanes = tl.arange(0, block)
    is_ignored = label == ignored
    is_valid = (label >= 0) & (label < classes)
    top = tl.full([block], -1e30, tl.float32)  # of each lane, in powers of two
    total = tl.zeros([block], tl.float32)
    for first in range(0, classes, block):
        x = tl.load(start + first + lanes, mask=first + lanes < classes, other=-float("inf"))
        x = x.to(tl.float32) * log2_e
        new = tl.maximum(top, x)
        total = total * tl.exp2(top - new) + tl.exp2(x - new)
        top = new
    highest = tl.max(top, 0)
    log_sum = highest + tl.log2(tl.sum(total * tl.exp2(top - highest), 0))
    picked = tl.load(start + tl.where(is_valid, label, 0)).to(tl.float32)
    loss = tl.where(is_valid, log_sum / log2_e - picked, float("nan"))
    tl.store(losses + row, tl.where(is_ignored, 0.0, loss))
    weight = tl.where(is_ignored, 0.0, tl.load(factor))
    for first in range(0, columns, block):
        places = first + lanes
        x = tl.load(start + places, mask=places < classes, other=-float("inf"))
        probability = tl.exp2(x.to(tl.float32) * log2_e - log_sum)
        gradient = tl.where(places == label, probability - 1.0, probability) * weight
        gradient = tl.where(is_ignored, 0.0, gradient)
        tl.store(start + places, gradient.to(scores.dtype.element_ty), mask=places < columns)


def softmax_gradients_(
    scores: torch.Tensor,
    labels: torch.Tensor,
    factor: torch.Tensor,
    losses: torch.Tensor,
    classes: int,
    ignored: int,
) -> None:
    """Replace rows of scores by their gradients, and write each row's loss.

    scores: (rows, columns), contiguous; columns from `classes` on are padding, and become 0.
    factor: one number, the gradient of each row's loss. A label outside of the classes gives NaN.
    """
    grid: Any = (len(scores),)
    _rows[grid](
        *(scores, labels, factor, losses, classes, scores.shape[1], ignored),
        block=_BLOCK,
        num_warps=_WARPS,
    )
