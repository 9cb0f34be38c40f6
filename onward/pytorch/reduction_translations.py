"""Translations of reductions, order statistics and running reductions to ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18

from onward.pytorch.activation_translations import log_add_exp
from onward.pytorch.fallback import CannotCapture
from onward.pytorch.stopped_gradients import stop_gradient
from onward.pytorch.typed_numbers import number

op: Any = opset18
_aten = torch.ops.aten
_LONGEST = 1 << 24  # elements of an axis of unknown size, over which a reduction runs


# -- norms -----------------------------------------------------------------------------------


def vector_norm(
    x: Any,
    ord: float = 2.0,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: int = -1,
) -> Any:
    """(sum |x|^p)^(1 / p); its gradient is 0 where the norm is 0, as torch's"""
    if dtype != -1:
        x = op.Cast(x, to=dtype)
    is_scalar = x.shape is not None and not len(x.shape)
    x = op.Reshape(x, [1]) if is_scalar else x
    axes = [0] if is_scalar else list(dim or range(len(x.shape)))
    keeps, zero, one = int(keepdim), number(0.0, x), number(1.0, x)
    if ord == 0:
        return op.ReduceSum(op.CastLike(op.Not(op.Equal(x, zero)), x), axes, keepdims=keeps)
    if ord == 1:
        return op.ReduceL1(x, axes, keepdims=keeps)
    if ord == 2:
        return op.ReduceL2(x, axes, keepdims=keeps)
    if math.isinf(ord):
        reduce = op.ReduceMax if ord > 0 else op.ReduceMin
        return reduce(op.Abs(x), axes, keepdims=keeps)
    power = number(float(ord), x)
    size = op.Abs(x)
    if ord < 1:  # the slope of a power is infinite at 0
        is_zero = op.Equal(size, zero)
        at_zero = zero if ord > 0 else number(math.inf, x)
        raised = op.Where(is_zero, at_zero, op.Pow(op.Where(is_zero, one, size), power))
    else:
        raised = op.Pow(size, power)
    total = op.ReduceSum(raised, axes, keepdims=keeps)
    is_nothing = op.Equal(total, zero)
    root = op.Pow(op.Where(is_nothing, one, total), number(1.0 / ord, x))
    return op.Where(is_nothing, zero, root)


# -- largest and smallest --------------------------------------------------------------------


def _extreme_of_axis(reduce: str, arg: str) -> Callable[..., tuple[Any, Any]]:
    """The translation of max.dim or min.dim"""

    def translate(x: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
        """The first largest element of an axis, which has the gradient, and its index"""
        if not len(x.shape):
            return op.Identity(x), op.Constant(value_int=0)
        index = getattr(op, arg)(x, axis=dim, keepdims=1)
        if torch.is_grad_enabled() and x.dtype.is_floating_point():
            y = op.GatherElements(x, index, axis=dim)
        else:
            y = getattr(op, reduce)(x, [dim], keepdims=1)
        return (y, index) if keepdim else (op.Squeeze(y, [dim]), op.Squeeze(index, [dim]))

    return translate


def _extreme(reduce: str) -> Callable[..., Any]:
    """The translation of amax or amin, whose gradient equal elements share"""

    def translate(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        if not len(x.shape):
            return op.Identity(x)
        axes = list(dim) or list(range(len(x.shape)))
        return getattr(op, reduce)(x, axes, keepdims=int(keepdim))

    return translate


# -- order statistics ------------------------------------------------------------------------


def _kth_value(x: Any, k: Any, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    """The k-th smallest element of an axis, and its index; NaN is larger than any number"""
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    index = _index_of_kth(x, op.Reshape(k, [1]), dim, x.dtype.is_floating_point())
    return _taken(x, index, dim, keepdim)


def _index_of_kth(x: Any, k: Any, dim: int, is_float: bool) -> Any:
    order = op.Where(op.IsNaN(x), number(math.inf, x), x) if is_float else x
    _, indices = op.TopK(order, k, axis=dim, largest=0)
    return op.Slice(indices, [-1], [1 << 62], [dim])


def _taken(x: Any, index: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    y = op.GatherElements(x, index, axis=dim)
    return (y, index) if keepdim else (op.Squeeze(y, [dim]), op.Squeeze(index, [dim]))


def _median_of_axis(x: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """The lower one of the middle elements of an axis, or its first NaN, and the index"""
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    index = _index_of_median(x, dim % len(x.shape), x.dtype.is_floating_point())
    return _taken(x, index, dim, keepdim)


def _index_of_median(x: Any, axis: int, is_float: bool) -> Any:
    size = op.Shape(x, start=axis, end=axis + 1)
    one, two = (op.Constant(value_ints=[number]) for number in (1, 2))
    index = _index_of_kth(x, op.Div(op.Add(size, one), two), axis, is_float)
    if is_float:
        unknown = op.Cast(op.IsNaN(x), to=6)
        first = op.ArgMax(unknown, axis=axis, keepdims=1)
        has_unknown = op.Cast(op.ReduceMax(unknown, [axis], keepdims=1), to=9)
        index = op.Where(has_unknown, first, index)
    return index


def _median(x: Any) -> Any:
    """The lower one of the middle elements; elements that are equal to it share the gradient"""
    is_float, flat = x.dtype.is_floating_point(), op.Reshape(x, [-1])
    found, _ = _taken(flat, _index_of_median(flat, 0, is_float), 0, keepdim=False)
    if not is_float or not torch.is_grad_enabled():
        return found
    found = stop_gradient(found)
    below = op.Where(op.LessOrEqual(x, found), x, number(-math.inf, x))
    largest = op.ReduceMax(below, keepdims=0)
    return op.Where(op.IsNaN(found), found, largest)


# -- running reductions ----------------------------------------------------------------------


def _running(x: Any, axis: int, size: Any, start: Any, join: Callable[[Any, Any], Any]) -> Any:
    """join of all elements up to each, in steps of doubling width: (earlier ones, these) -> joined

    Elements before the first are `start`.
    """
    for width in _widths(x, axis, size):
        x = join(_shifted(x, axis, width, start), x)
    return op.Identity(x)


def _widths(x: Any, axis: int, size: Any) -> list[Any]:
    """1, 2, 4, ... below the size of an axis; up to that size if only a call knows it"""
    if isinstance(size, int):
        return [op.Constant(value_ints=[1 << i]) for i in range((size - 1).bit_length())]
    whole = op.Shape(x, start=axis, end=axis + 1)
    steps = range(_LONGEST.bit_length() - 1)
    return [op.Min(op.Constant(value_ints=[1 << i]), whole) for i in steps]


def _shifted(x: Any, axis: int, width: Any, start: Any) -> Any:
    """y[i] = x[i - width] along an axis, `start` before the first"""
    zero = op.Constant(value_ints=[0])
    size = op.Shape(x, start=axis, end=axis + 1)
    padded = op.Pad(x, op.Concat(width, zero, axis=0), start, [axis])
    return op.Slice(padded, zero, size, [axis])


def _cum_prod(x: Any, dim: int, dtype: int = -1) -> Any:
    """y[i] = x[0] ... x[i]"""
    rank, kind = len(x.shape), dtype
    if dtype == -1:
        kind = x.dtype if x.dtype.is_floating_point() else ir.DataType.INT64
    y = op.Cast(x, to=int(kind))
    one = op.Constant(value=ir.tensor(1, dtype=ir.DataType(kind)))
    axis = dim % max(rank, 1)
    return _running(y, axis, x.shape[axis], one, op.Mul) if rank else y


def _log_cum_sum_exp(x: Any, dim: int) -> Any:
    """y[i] = log(exp(x[0]) + ... + exp(x[i]))"""
    if not len(x.shape):
        return op.Identity(x)
    axis = dim % len(x.shape)
    return _running(x, axis, x.shape[axis], number(-math.inf, x), log_add_exp)


def _cum_extreme(is_beyond: Callable[[Any, Any], Any], start: float) -> Callable[..., Any]:
    """The translation of cummax or cummin"""

    def translate(x: Any, dim: int) -> tuple[Any, Any]:
        """The largest element up to each and the index of the last one: the first NaN stays"""
        if not len(x.shape):
            return op.Identity(x), op.Constant(value_int=0)
        axis, is_float = dim % len(x.shape), x.dtype.is_floating_point()
        if not is_float and x.dtype not in (ir.DataType.INT32, ir.DataType.INT64):
            raise CannotCapture(f"torch.cummax and cummin of {x.dtype} have no ONNX operators")
        size = op.Squeeze(op.Shape(x, start=axis, end=axis + 1), [0])
        places = op.Reshape(op.Range(0, size, 1), [-1, *[1] * (len(x.shape) - axis - 1)])
        index = op.Expand(places, op.Shape(x))
        least = number(start, x) if is_float else _end_of_integers(x, start)
        y = x
        for width in _widths(x, axis, x.shape[axis]):
            earlier = _shifted(y, axis, width, least)
            its_index = _shifted(index, axis, width, op.Constant(value_int=0))
            takes = is_beyond(earlier, y)
            if is_float:
                takes = op.Or(takes, op.And(op.IsNaN(earlier), op.Not(op.IsNaN(y))))
            y, index = op.Where(takes, earlier, y), op.Where(takes, its_index, index)
        return op.GatherElements(x, index, axis=axis), index

    return translate


def _end_of_integers(x: Any, end: float) -> Any:
    limits = torch.iinfo(torch.int32 if x.dtype == ir.DataType.INT32 else torch.int64)
    return op.CastLike(op.Constant(value_int=limits.max if end > 0 else limits.min), x)


_RUNNING = (
    *(_aten.cummax.default, _aten.cummin.default, _aten.cumprod.default),
    _aten.logcumsumexp.default,
)


def check_running_axes(traced: Any) -> None:
    """Make it a condition of a traced graph that running reductions take no more steps."""
    for node in traced.graph.nodes:
        if node.target in _RUNNING:
            shape = node.args[0].meta["val"].shape
            size = shape[node.args[1]] if len(shape) else 0
            if isinstance(size, torch.SymInt) and size > _LONGEST:
                raise CannotCapture(f"{node.target} runs over an axis of more than 2^24 elements")


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    _aten.amax.default: _extreme("ReduceMax"),
    _aten.amin.default: _extreme("ReduceMin"),
    _aten.cummax.default: _cum_extreme(op.Greater, -math.inf),
    _aten.cummin.default: _cum_extreme(op.Less, math.inf),
    _aten.cumprod.default: _cum_prod,
    _aten.kthvalue.default: _kth_value,
    _aten.linalg_vector_norm.default: vector_norm,
    _aten.logcumsumexp.default: _log_cum_sum_exp,
    _aten.max.dim: _extreme_of_axis("ReduceMax", "ArgMax"),
    _aten.median.default: _median,
    _aten.median.dim: _median_of_axis,
    _aten.min.dim: _extreme_of_axis("ReduceMin", "ArgMin"),
}
