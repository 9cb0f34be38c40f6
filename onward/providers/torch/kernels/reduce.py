"""Reductions over axes, ArgMax, ArgMin and TopK.

Without axes, all axes are reduced; with `noop_with_empty_axes`, none: sum, product, maximum and
minimum are then x itself. A reduction of an empty tensor gives its neutral element.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Int, Ints, Tensor
from onward.providers.torch.kernels.emulated_dtypes import by_bits, by_order, by_value
from onward.providers.torch.kernels.math import abs_

kernel = OpTable()


def _axes_to_reduce(x: Tensor, axes: Ints | None, noop_with_empty_axes: int) -> Ints:
    """The axes to reduce; an empty list is none."""
    if axes:
        return axes
    return [] if noop_with_empty_axes else list(range(x.ndim))


@kernel("ReduceSum")
@by_bits
def reduce_sum(
    x: Tensor, axes: Ints | None = None, *, keepdims: int, noop_with_empty_axes: int = 0
) -> Tensor:
    """sum(x)"""
    axes = _axes_to_reduce(x, axes, noop_with_empty_axes)
    return torch.sum(x, axes, bool(keepdims), dtype=x.dtype) if axes else x


@kernel("ReduceSumSquare")
@by_bits
def reduce_sum_square(
    x: Tensor, axes: Ints | None = None, *, keepdims: int, noop_with_empty_axes: int = 0
) -> Tensor:
    """sum(x^2)"""
    return reduce_sum(x * x, axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)


@kernel("ReduceL1")
def reduce_l1(
    x: Tensor, axes: Ints | None = None, *, keepdims: int, noop_with_empty_axes: int = 0
) -> Tensor:
    """sum(|x|)"""
    return reduce_sum(abs_(x), axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)


@kernel("ReduceL2")
@by_value
def reduce_l2(
    x: Tensor, axes: Ints | None = None, *, keepdims: int, noop_with_empty_axes: int = 0
) -> Tensor:
    """sqrt(sum(x^2))"""
    axes = _axes_to_reduce(x, axes, noop_with_empty_axes)
    if not axes:
        return abs_(x)
    floats = x if x.is_floating_point() else x.double()
    y: Tensor = torch.linalg.vector_norm(floats, 2, axes, bool(keepdims))
    return y.to(x.dtype)


@kernel("ReduceLogSum")
def reduce_log_sum(
    x: Tensor, axes: Ints | None = None, *, keepdims: int, noop_with_empty_axes: int = 0
) -> Tensor:
    """log(sum(x))"""
    return torch.log(
        reduce_sum(x, axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)
    )


@kernel("ReduceLogSumExp")
def reduce_log_sum_exp(
    x: Tensor, axes: Ints | None = None, *, keepdims: int, noop_with_empty_axes: int = 0
) -> Tensor:
    """log(sum(exp(x)))"""
    axes = _axes_to_reduce(x, axes, noop_with_empty_axes)
    return torch.logsumexp(x, axes, bool(keepdims)) if axes else x


@kernel("ReduceMean")
@by_value
def reduce_mean(
    x: Tensor, axes: Ints | None = None, *, keepdims: int, noop_with_empty_axes: int = 0
) -> Tensor:
    """sum(x) / n; integers are rounded towards zero."""
    axes = _axes_to_reduce(x, axes, noop_with_empty_axes)
    if not axes:
        return x
    if x.is_floating_point():
        return torch.mean(x, axes, bool(keepdims))
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    total = torch.sum(x, axes, bool(keepdims), dtype=x.dtype)
    return torch.div(total, count, rounding_mode="trunc")


@kernel("ReduceProd")
@by_bits
def reduce_prod(
    x: Tensor, axes: Ints | None = None, *, keepdims: int, noop_with_empty_axes: int = 0
) -> Tensor:
    """The product of x's elements."""
    axes = _axes_to_reduce(x, axes, noop_with_empty_axes)
    for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
        x = torch.prod(x, axis, bool(keepdims), dtype=x.dtype)
    return x


@kernel("ReduceMax")
@by_order
def reduce_max(
    x: Tensor, axes: Ints | None = None, *, keepdims: int, noop_with_empty_axes: int = 0
) -> Tensor:
    """The largest of x's elements; the lowest number if there are none."""
    axes = _axes_to_reduce(x, axes, noop_with_empty_axes)
    return _extreme(torch.amax, _lowest(x.dtype), x, axes, bool(keepdims))


@kernel("ReduceMin")
@by_order
def reduce_min(
    x: Tensor, axes: Ints | None = None, *, keepdims: int, noop_with_empty_axes: int = 0
) -> Tensor:
    """The smallest of x's elements; the highest number if there are none."""
    axes = _axes_to_reduce(x, axes, noop_with_empty_axes)
    return _extreme(torch.amin, _highest(x.dtype), x, axes, bool(keepdims))


def _extreme(
    reduce: Callable[..., Tensor], neutral: float, x: Tensor, axes: Ints, keepdims: bool
) -> Tensor:
    if not axes:
        return x
    if any(x.shape[axis] == 0 for axis in axes):  # torch refuses: make one neutral element
        for axis in axes:
            shape = [*x.shape]
            shape[axis] = 1
            x = x.new_full(shape, neutral)
    return reduce(x, axes, keepdims)


def _lowest(dtype: torch.dtype) -> float:
    if dtype == torch.bool:
        return False
    return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> float:
    if dtype == torch.bool:
        return True
    return torch.inf if dtype.is_floating_point else torch.iinfo(dtype).max


@kernel("ArgMax")
@by_order(results=0)
def arg_max(x: Tensor, *, axis: int, keepdims: int, select_last_index: int) -> Tensor:
    """The index of the largest element; the first of equals, or the last."""
    return _position(torch.argmax, x, axis, bool(keepdims), select_last_index)


@kernel("ArgMin")
@by_order(results=0)
def arg_min(x: Tensor, *, axis: int, keepdims: int, select_last_index: int) -> Tensor:
    """The index of the smallest element; the first of equals, or the last."""
    return _position(torch.argmin, x, axis, bool(keepdims), select_last_index)


def _position(
    find: Callable[..., Tensor], x: Tensor, axis: int, keepdims: bool, last: int
) -> Tensor:
    if not x.numel():
        return _position_in_empty(x, axis, keepdims)
    if not last:
        return find(x, axis, keepdims)
    return x.shape[axis] - 1 - find(x.flip(axis), axis, keepdims)


def _position_in_empty(x: Tensor, axis: int, keepdims: bool) -> Tensor:
    """The empty result if another axis is empty, too; else an error."""
    y = x.sum(axis, keepdim=keepdims, dtype=torch.int64)
    if y.numel():
        raise ValueError(
            f"axis {axis} of an input of shape {list(x.shape)} is empty: "
            "it has no largest or smallest element"
        )
    return y


@kernel("TopK")
@by_order
def top_k(x: Tensor, k: Int, *, axis: int, largest: int, sorted: int) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) elements, in order, and their indices; of equals, the first.

    torch.topk does not define the order of equals. So its keys are made unique: an
    element's rank, then its place.
    """
    if x.dtype.itemsize == 8:  # 64-bit values leave no bits for the index
        values, indices = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
        return values.narrow(axis, 0, k), indices.narrow(axis, 0, k)
    last = x.shape[axis] - 1
    places = torch.arange(last + 1, device=x.device)
    shape = [1] * x.ndim
    shape[axis] = -1
    keys = (_ranks(x).to(torch.int64) << 32) | (last - places if largest else places).reshape(shape)
    low_bits = torch.topk(keys, k, axis, bool(largest)).values & 0xFFFFFFFF
    indices = last - low_bits if largest else low_bits
    return x.gather(axis, indices), indices


def _ranks(x: Tensor) -> Tensor:
    """Integers in the order of x's elements: 0 and -0 are equal, NaN is above all."""
    if not x.is_floating_point():
        return x
    x = x.float()
    bits = torch.where(x == 0, 0, x.view(torch.int32))
    ranks = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # the bits of negative floats sort in reverse
    return torch.where(torch.isnan(x), torch.iinfo(torch.int32).max, ranks)
