"""Translations of torch's losses to ONNX, with label smoothing and the gradients of torch."""

from __future__ import annotations

from typing import Any

import torch
from onnxscript import opset18

from onward.pytorch.stopped_gradients import stop_gradient
from onward.pytorch.typed_numbers import number

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


def binary_cross_entropy(x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    """-t log(x) - (1 - t) log(1 - x), logarithms of -100 at least; dx = (x - t) / max(x (1 - x), e)

    torch's gradient is finite where a probability is 0 or 1, that of the formula is not.
    """
    one, least = number(1.0, x), number(-100.0, x)
    known = stop_gradient(x) if torch.is_grad_enabled() else x
    rest = op.Sub(one, known)
    logs = [op.Max(op.Log(each), least) for each in (known, rest)]
    loss = op.Neg(op.Add(op.Mul(target, logs[0]), op.Mul(op.Sub(one, target), logs[1])))
    if torch.is_grad_enabled():  # x - known is 0, and has the gradient
        spread = op.Max(op.Mul(known, rest), number(1e-12, x))
        slope = op.Div(op.Sub(known, stop_gradient(target)), spread)
        loss = op.Add(loss, op.Mul(op.Sub(x, known), slope))
    return _reduced(loss if weight is None else op.Mul(loss, weight), reduction)


def multi_margin_loss(
    x: Any,
    target: Any,
    p: float = 1,
    margin: float = 1.0,
    weight: Any = None,
    reduction: int = 1,
) -> Any:
    """sum over j != y of weight[y] relu(margin - x[y] + x[j])^p / classes: no gradient at 0"""
    single, width = len(x.shape) == 1, number(margin, x)
    if single:
        x = op.Unsqueeze(x, [0])
    target = op.Reshape(target, [-1])
    column = op.Unsqueeze(target, [1])
    chosen = op.GatherElements(x, column, axis=1)
    below = op.Relu(op.Add(op.Sub(x, chosen), width))
    if p == 2:
        below = op.Mul(below, below)
    classes = op.Range(0, op.Squeeze(op.Shape(x, start=1, end=2), [0]), 1)
    others = op.CastLike(op.Not(op.Equal(op.CastLike(classes, column), column)), x)
    loss = op.Mul(below, others)
    if weight is not None:
        loss = op.Mul(loss, op.Gather(weight, column))
    loss = op.Div(op.ReduceSum(loss, [1], keepdims=0), _classes(x))
    return op.Squeeze(loss, [0]) if single and reduction == 0 else _reduced(loss, reduction)


def _reduced(loss: Any, reduction: int) -> Any:
    """All losses, their mean or their sum."""
    if reduction == 0:
        return loss
    return (op.ReduceMean if reduction == 1 else op.ReduceSum)(loss, keepdims=0)
