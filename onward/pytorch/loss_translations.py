"""Translations of torch's losses to ONNX: torch's own exporter ignores label smoothing."""

from __future__ import annotations

from typing import Any

from onnxscript import opset18

op: Any = opset18

_REDUCTIONS = ("none", "mean", "sum")
_IGNORED = -100


def cross_entropy_loss(
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: Any = _IGNORED,
    label_smoothing: float = 0.0,
) -> Any:
    """(1 - s) nll + s / classes * sum of -log p over the classes; s: label smoothing"""
    single = len(x.shape) == 1
    if single:
        x, target = op.Unsqueeze(x, [0]), op.Unsqueeze(target, [0])
    if target.dtype == x.dtype:
        found = _of_probabilities(x, target, weight, reduction, label_smoothing)
    else:
        found = _of_classes(x, target, weight, reduction, ignore_index, label_smoothing)
    return op.Squeeze(found, [0]) if single and reduction == 0 else found


def _of_classes(
    x: Any, target: Any, weight: Any, reduction: int, ignore_index: Any, smoothing: float
) -> Any:
    if not isinstance(ignore_index, int):  # a size of a tensor, such as in question answering
        ignored = op.Equal(target, op.CastLike(ignore_index, target))
        target = op.Where(ignored, op.CastLike(_IGNORED, target), target)
        ignore_index = _IGNORED
    name = _REDUCTIONS[reduction]
    nll, _ = op.SoftmaxCrossEntropyLoss(
        x, target, weight, reduction=name, ignore_index=ignore_index
    )
    if smoothing == 0.0:
        return nll
    kept = op.Not(op.Equal(target, op.CastLike(ignore_index, target)))
    mask = op.CastLike(kept, x)
    rank = len(x.shape)
    spread = op.Mul(_over_classes(op.Neg(op.LogSoftmax(x, axis=1)), weight, rank), mask)
    if reduction == 1:
        count = mask
        if weight is not None:
            chosen = op.Where(kept, target, op.CastLike(0, target))
            count = op.Mul(op.Gather(weight, chosen), mask)
        spread = op.Div(op.ReduceSum(spread, keepdims=0), op.ReduceSum(count, keepdims=0))
    elif reduction == 2:
        spread = op.ReduceSum(spread, keepdims=0)
    return op.Add(_scaled(nll, 1.0 - smoothing), op.Div(_scaled(spread, smoothing), _classes(x)))


def _of_probabilities(x: Any, target: Any, weight: Any, reduction: int, smoothing: float) -> Any:
    rank = len(x.shape)
    if smoothing > 0.0:
        even = op.Div(op.CastLike(smoothing, x), _classes(x))
        target = op.Add(_scaled(target, 1.0 - smoothing), even)
    loss = op.Neg(op.Mul(op.LogSoftmax(x, axis=1), target))
    loss = _over_classes(loss, weight, rank)
    if reduction == 0:
        return loss
    total = op.ReduceSum(loss, keepdims=0)
    if reduction == 2:
        return total
    return op.Div(total, op.CastLike(op.Size(loss), x))


def _over_classes(x: Any, weight: Any, rank: int) -> Any:
    """The sum over the classes, axis 1, each with its weight."""
    if weight is not None:
        rest = list(range(1, rank - 1))
        x = op.Mul(x, op.Unsqueeze(weight, rest) if rest else weight)
    return op.ReduceSum(x, [1], keepdims=0)


def _scaled(x: Any, factor: float) -> Any:
    return op.Mul(x, op.CastLike(factor, x))


def _classes(x: Any) -> Any:
    return op.CastLike(op.Squeeze(op.Shape(x, start=1, end=2), [0]), x)
