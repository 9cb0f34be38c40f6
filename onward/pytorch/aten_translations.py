"""Translations of ATen operators to ONNX that torch's own exporter lacks in training mode."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnxscript import opset18
from onnxscript.function_libs.torch_lib.ops import core

from onward.pytorch import (
    activation_translations,
    matrix_translations,
    reduction_translations,
    special_translations,
)
from onward.pytorch.fallback import CannotCapture
from onward.pytorch.loss_translations import (
    binary_cross_entropy,
    cross_entropy_loss,
    multi_margin_loss,
)
from onward.pytorch.recurrent_translations import recurrent
from onward.pytorch.stopped_gradients import STOP_GRADIENT, stop_gradient

op: Any = opset18

_aten = torch.ops.aten


def _batch_norm_functional(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """y, saved mean, saved inverse deviation, new running mean, new running variance

    torch divides the variance that it accumulates by n - 1, ONNX by n.
    """
    scale, shift = _affine(x, weight, bias)
    y, mean, var = op.BatchNormalization(
        *(x, scale, shift, _scratch(running_mean), _scratch(running_var)),
        epsilon=eps,
        momentum=0.0,  # its running outputs are then the statistics of the batch
        training_mode=1,
    )
    sizes = op.Cast(op.Shape(x), to=1)
    channels = op.Cast(op.Shape(x, start=1, end=2), to=1)
    n = op.Div(op.ReduceProd(sizes, keepdims=1), channels)
    unbiased = op.Mul(var, op.CastLike(op.Div(n, op.Sub(n, 1.0)), var))
    new_mean = op.Add(op.Mul(running_mean, 1.0 - momentum), op.Mul(mean, momentum))
    new_var = op.Add(op.Mul(running_var, 1.0 - momentum), op.Mul(unbiased, momentum))
    return y, mean, var, new_mean, new_var


def _scratch(tensor: Any) -> Any:
    """A tensor of the same shape for onnxruntime to overwrite; each differs from the others."""
    return op.CastLike(op.Less(tensor, -float(next(_serial))), tensor)


def _affine(x: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    """The scale and the shift of each channel; ones and zeros where the layer has none."""
    if weight is not None and bias is not None:
        return weight, bias
    shape = op.Shape(x, start=1, end=2)
    ones, zeros = (op.CastLike(op.Expand(number, shape), x) for number in (1.0, 0.0))
    return ones if weight is None else weight, zeros if bias is None else bias


def _embedding(
    weight: Any,
    indices: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """weight[indices]; rows of the padding index get no gradient"""
    _refuse_other_gradients("nn.Embedding", scale_grad_by_freq, sparse)
    rows = op.Gather(weight, indices)
    if padding_idx < 0:
        return rows
    is_padding = op.Unsqueeze(op.Equal(indices, op.CastLike(padding_idx, indices)), [-1])
    return op.Where(is_padding, stop_gradient(rows), rows)


def _refuse_other_gradients(layer: str, scale_grad_by_freq: bool, sparse: bool) -> None:
    """Refuse a table whose gradient is not the dense sum over the indices."""
    if torch.is_grad_enabled() and scale_grad_by_freq:
        raise CannotCapture(f"{layer} with scale_grad_by_freq has a gradient of its own")
    if torch.is_grad_enabled() and sparse:
        raise CannotCapture(f"{layer} with sparse=True has a sparse gradient")


def _multinomial(x: Any, num_samples: int, replacement: bool = False, generator: Any = None) -> Any:
    """Classes, drawn with the probabilities x"""
    if not replacement and num_samples != 1:
        raise CannotCapture("torch.multinomial without replacement has no ONNX operator")
    single = len(x.shape) == 1
    logarithms = op.Log(op.Unsqueeze(x, [0]) if single else x)
    drawn = op.Multinomial(logarithms, dtype=7, sample_size=num_samples)
    return op.Squeeze(drawn, [0]) if single else drawn


_serial = itertools.count(1)


def _embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """The sums (mode 0) or means (mode 1) of rows: bags rows, rows = membership weight[indices]

    Rows of padding_idx are left out, of the count, too.
    """
    _refuse_other_gradients("nn.EmbeddingBag", scale_grad_by_freq, sparse)
    if mode == 2:
        raise CannotCapture("nn.EmbeddingBag of mode 'max' has no ONNX operators")
    count = op.Reshape(op.Size(indices), [1])
    starts = offsets if include_last_offset else op.Concat(offsets, count, axis=0)
    first, end = op.Slice(starts, [0], [-1], [0]), op.Slice(starts, [1], [1 << 62], [0])
    places = op.Unsqueeze(op.Range(0, op.Squeeze(count, [0]), 1), [0])  # (1, indices)
    member = op.And(
        op.GreaterOrEqual(places, op.Unsqueeze(first, [1])), op.Less(places, op.Unsqueeze(end, [1]))
    )
    if padding_idx is not None and padding_idx >= 0:
        member = op.And(member, op.Not(op.Equal(op.Unsqueeze(indices, [0]), padding_idx)))
    share = op.CastLike(member, weight)  # (bags, indices)
    if mode == 1:
        share = op.Div(share, op.Clip(op.ReduceSum(share, [1], keepdims=1), 1.0))
    if per_sample_weights is not None:
        share = op.Mul(share, op.Unsqueeze(per_sample_weights, [0]))
    bags = op.MatMul(share, op.Gather(weight, indices))
    return bags, op.Identity(offsets), op.Identity(offsets), op.Identity(offsets)


def _roll(x: Any, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """y[i] = x[(i - shift) mod n] along each axis, or of all elements; a shift may be a size."""
    if not len(x.shape):
        return op.Identity(x)
    y = x if len(dims) else op.Reshape(x, [-1])
    for shift, axis in zip(shifts, dims or (0,), strict=True):
        start = axis % len(x.shape)
        size = op.Max(op.Shape(y, start=start, end=start + 1), op.Constant(value_ints=[1]))
        first = op.Mod(op.Neg(op.Reshape(shift, [1])), size)
        y = op.Concat(
            *(op.Slice(y, first, [1 << 62], [axis]), op.Slice(y, [0], first, [axis])), axis=axis
        )
    return y if len(dims) else op.Reshape(y, op.Shape(x))


def _cdist(x: Any, y: Any, p: float, compute_mode: int | None = None) -> Any:
    """Distances between rows: (..., n, d), (..., m, d) -> (..., n, m)"""
    if p not in (1.0, 2.0):
        raise CannotCapture(f"torch.cdist with p={p:g} has no ONNX operators")
    difference = op.Sub(op.Unsqueeze(x, [-2]), op.Unsqueeze(y, [-3]))
    if p == 1.0:
        return op.ReduceSum(op.Abs(difference), [-1], keepdims=0)
    return _distance(op.ReduceSum(op.Mul(difference, difference), [-1], keepdims=0))


def _euclidean_distances(x: Any, y: Any) -> Any:
    """The root of |x|² + |y|² - 2 x yᵀ, which torch.cdist takes for more than 25 rows"""
    squares = [op.ReduceSum(op.Mul(each, each), [-1], keepdims=1) for each in (x, y)]
    axes = [*range(len(y.shape) - 2), len(y.shape) - 1, len(y.shape) - 2]
    product = op.MatMul(x, op.Transpose(y, perm=axes))
    sums = op.Add(squares[0], op.Transpose(squares[1], perm=axes))
    square = op.Sub(sums, op.Mul(product, op.CastLike(2.0, product)))
    return _distance(op.Max(square, op.CastLike(0.0, square)))


def _distance(square: Any) -> Any:
    """The root of squared distances; its gradient is 0 where they are 0, as that of torch.cdist."""
    is_zero = op.Equal(square, op.CastLike(0.0, square))
    return op.Where(is_zero, square, op.Sqrt(op.Where(is_zero, op.CastLike(1.0, square), square)))


def _std(
    x: Any, dim: Sequence[int] | None = None, correction: float | None = None, keepdim: bool = False
) -> Any:
    """sqrt(sum((x - mean)²) / (n - correction)); its gradient is 0 where it is 0, as torch's"""
    axes = list(dim or range(len(x.shape)))
    if not axes:
        return op.Identity(op.Sub(x, x))
    centred = op.Sub(x, op.ReduceMean(x, axes, keepdims=1))
    squares = op.ReduceSum(op.Mul(centred, centred), axes, keepdims=int(keepdim))
    count = op.CastLike(op.ReduceProd(op.Gather(op.Shape(x), axes), keepdims=0), x)
    less = op.CastLike(1.0 if correction is None else float(correction), x)
    return _distance(op.Div(squares, op.Sub(count, less)))


def _scatter_reduce(
    x: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True
) -> Any:
    """x with src reduced into it at index; the mean, which ONNX lacks, is a sum and a count"""
    if reduce != "mean":
        return core.aten_scatter_reduce(x, dim, index, src, reduce, include_self)
    zeros = op.Expand(op.CastLike(0.0, x), op.Shape(x))
    ones = op.Expand(op.CastLike(1.0, src), op.Shape(index))
    count = op.ScatterElements(zeros, index, ones, axis=dim, reduction="add")
    one = op.CastLike(1.0, x)
    if include_self:
        total = op.ScatterElements(x, index, src, axis=dim, reduction="add")
        return op.Div(total, op.Add(count, one))
    first = op.Where(op.Less(count, one), x, zeros)  # x stays where nothing is reduced into it
    total = op.ScatterElements(first, index, src, axis=dim, reduction="add")
    return op.Div(total, op.Max(count, one))


def _rrelu(
    x: Any,
    noise: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[Any, Any]:
    """x where x > 0, else a x: a of each element is drawn in training, else the mean"""
    if not training:
        return op.LeakyRelu(x, alpha=(lower + upper) / 2), noise
    slope = op.RandomUniformLike(x, low=lower, high=upper)
    return op.Where(op.Greater(x, op.CastLike(0.0, x)), x, op.Mul(x, slope)), noise


def _multilabel_margin_loss(x: Any, target: Any, reduction: int) -> Any:
    raise CannotCapture("F.multilabel_margin_loss has no ONNX operators")  # torch's own is wrong


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    **activation_translations.TRANSLATIONS,
    **matrix_translations.TRANSLATIONS,
    **reduction_translations.TRANSLATIONS,
    **special_translations.TRANSLATIONS,
    _aten._cdist_forward.default: _cdist,
    _aten._euclidean_dist.default: _euclidean_distances,
    _aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
    _aten.multilabel_margin_loss_forward.default: _multilabel_margin_loss,
    _aten.scatter_reduce.two: _scatter_reduce,
    _aten.std.correction: _std,
    _aten.binary_cross_entropy.default: binary_cross_entropy,
    _aten.multi_margin_loss.default: multi_margin_loss,
    _aten.cross_entropy_loss.default: cross_entropy_loss,
    _aten.embedding.default: _embedding,
    _aten.embedding_bag.padding_idx: _embedding_bag,
    _aten.multinomial.default: _multinomial,
    _aten.roll.default: _roll,
    _aten.rrelu_with_noise_functional.default: _rrelu,
    _aten.rnn_relu.input: recurrent("Relu"),
    _aten.rnn_tanh.input: recurrent("Tanh"),
    STOP_GRADIENT: stop_gradient,
}
