"""Elementwise arithmetic, comparison and logic; running sums; Det and Einsum."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from onward.graph.einsum_letters import expand_equation
from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Int, Tensor
from onward.providers.torch.kernels.emulated_dtypes import SIGNED, by_bits, by_order, by_value
from onward.providers.torch.kernels.half_precision import float32_on_cpu

kernel = OpTable()


def _register_unary(operator: str, function: Callable[[Tensor], Tensor]) -> None:
    """Register an operator that one ATen operator computes."""

    def run(x: Tensor) -> Tensor:
        return function(x)

    run.__name__ = function.__name__
    kernel(operator)(run)


for _operator, _function in {
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Log": torch.log,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Round": torch.round,  # halves to the even neighbour, as ONNX has it
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
}.items():
    _register_unary(_operator, _function)


# -- arithmetic ------------------------------------------------------------------------------


@kernel("Add")
@by_bits
def add(a: Tensor, b: Tensor) -> Tensor:
    return torch.add(a, b)


@kernel("Sub")
@by_bits
def sub(a: Tensor, b: Tensor) -> Tensor:
    return torch.sub(a, b)


@kernel("Mul")
@by_bits
def mul(a: Tensor, b: Tensor) -> Tensor:
    return torch.mul(a, b)


@kernel("Div")
def div(a: Tensor, b: Tensor) -> Tensor:
    """a / b; integers are rounded towards zero."""
    if a.is_floating_point():
        return torch.div(a, b)
    return _uint64_quotient(a, b) if a.dtype == torch.uint64 else _quotient(a, b)


@by_value
def _quotient(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="trunc")


@by_bits
def _uint64_quotient(a: Tensor, b: Tensor) -> Tensor:
    """Unsigned division by signed operators: half of `a` is never negative, one step is left."""
    half = torch.div(_shifted_right(a, 1), b, rounding_mode="trunc") * 2
    rest = a - half * b
    smallest = torch.iinfo(torch.int64).min
    one_more = ((rest ^ smallest) >= (b ^ smallest)).to(torch.int64)
    # Where b's own top bit is set, the quotient is 0 or 1.
    at_most_one = ((a ^ smallest) >= (b ^ smallest)).to(torch.int64)
    return torch.where(b < 0, at_most_one, half + one_more)


@kernel("Mod")
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """a - floor(a / b) * b, with b's sign; or a - trunc(a / b) * b, with a's (fmod)."""
    if a.dtype == torch.uint64:
        return sub(a, mul(_uint64_quotient(a, b), b))
    return _remainder(a, b, fmod=fmod)


@by_value
def _remainder(a: Tensor, b: Tensor, *, fmod: int) -> Tensor:
    if not fmod and a.is_floating_point():
        rest = torch.remainder(a, b)
        # torch gives a zero the sign of a, ONNX that of b
        return torch.copysign(rest, b).where(rest == 0, rest)
    rest = torch.fmod(a, b)
    if fmod:
        return rest
    # torch.remainder of integers, once compiled for a CPU, divides by zero past a tensor's end
    return torch.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@kernel("Pow")
@by_value(results=0)
def pow_(x: Tensor, y: Tensor) -> Tensor:
    """x^y, in x's type."""
    if y.is_floating_point() and not x.is_floating_point():
        return torch.pow(x.double(), y.double()).to(x.dtype)
    return torch.pow(x, y).to(x.dtype)


@kernel("Sum")
def sum_(*xs: Tensor) -> Tensor:
    return functools.reduce(torch.add, xs)


@kernel("Mean")
def mean(*xs: Tensor) -> Tensor:
    return sum_(*xs) / len(xs)


@kernel("Max")
@by_order
def max_(*xs: Tensor) -> Tensor:
    return functools.reduce(torch.maximum, xs)


@kernel("Min")
@by_order
def min_(*xs: Tensor) -> Tensor:
    return functools.reduce(torch.minimum, xs)


@kernel("Clip")
@by_order
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """min(max(x, low), high)"""
    return x if low is None and high is None else torch.clamp(x, low, high)


@kernel("Abs")
def abs_(x: Tensor) -> Tensor:
    return x if x.dtype in SIGNED else torch.abs(x)


@kernel("Sign")
def sign(x: Tensor) -> Tensor:
    return torch.ne(x, 0).to(x.dtype) if x.dtype in SIGNED else torch.sign(x)


# -- comparison and logic --------------------------------------------------------------------


@kernel("Equal")
@by_bits(results=0)
def equal(a: Tensor, b: Tensor) -> Tensor:
    return torch.eq(a, b)


@kernel("Greater")
@by_order(results=0)
def greater(a: Tensor, b: Tensor) -> Tensor:
    return torch.gt(a, b)


@kernel("GreaterOrEqual")
@by_order(results=0)
def greater_or_equal(a: Tensor, b: Tensor) -> Tensor:
    return torch.ge(a, b)


@kernel("Less")
@by_order(results=0)
def less(a: Tensor, b: Tensor) -> Tensor:
    return torch.lt(a, b)


@kernel("LessOrEqual")
@by_order(results=0)
def less_or_equal(a: Tensor, b: Tensor) -> Tensor:
    return torch.le(a, b)


@kernel("And")
def and_(a: Tensor, b: Tensor) -> Tensor:
    return torch.logical_and(a, b)


@kernel("Or")
def or_(a: Tensor, b: Tensor) -> Tensor:
    return torch.logical_or(a, b)


@kernel("Xor")
def xor(a: Tensor, b: Tensor) -> Tensor:
    return torch.logical_xor(a, b)


@kernel("Where")
@by_bits
def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition, a, b)


@kernel("IsNaN")
def is_nan(x: Tensor) -> Tensor:
    return torch.isnan(_computable(x))


@kernel("IsInf")
def is_inf(x: Tensor, *, detect_negative: int, detect_positive: int) -> Tensor:
    x = _computable(x)
    if detect_negative and detect_positive:
        return torch.isinf(x)
    if detect_positive:
        return torch.isposinf(x)
    return torch.isneginf(x) if detect_negative else torch.zeros_like(x, dtype=torch.bool)


def _computable(x: Tensor) -> Tensor:
    """The float8s as float32: torch compares no float8."""
    return x.float() if x.dtype.itemsize == 1 else x


# -- bits ------------------------------------------------------------------------------------


@kernel("BitwiseAnd")
@by_bits
def bitwise_and(a: Tensor, b: Tensor) -> Tensor:
    return torch.bitwise_and(a, b)


@kernel("BitwiseOr")
@by_bits
def bitwise_or(a: Tensor, b: Tensor) -> Tensor:
    return torch.bitwise_or(a, b)


@kernel("BitwiseXor")
@by_bits
def bitwise_xor(a: Tensor, b: Tensor) -> Tensor:
    return torch.bitwise_xor(a, b)


@kernel("BitwiseNot")
@by_bits
def bitwise_not(x: Tensor) -> Tensor:
    return torch.bitwise_not(x)


@kernel("BitShift")
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    """x * 2^y or floor(x / 2^y); 0 for a shift by all bits or more, or by a negative number."""
    if direction == "LEFT":
        return _shift_left(x, y)
    return _shift_right(x, y) if x.dtype in SIGNED else torch.bitwise_right_shift(x, y)


@by_bits
def _shift_left(x: Tensor, y: Tensor) -> Tensor:
    return torch.bitwise_left_shift(x, y)


@by_bits
def _shift_right(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(y == 0, x, _shifted_right(x, 1) >> (y - 1))


def _shifted_right(x: Tensor, by: int) -> Tensor:
    """A signed integer's bits shifted right, zeros coming in."""
    return (x >> by) & (torch.iinfo(x.dtype).max >> (by - 1))


# -- running sums and products ---------------------------------------------------------------


@kernel("CumSum")
@by_bits
def cum_sum(x: Tensor, axis: Int, *, exclusive: int, reverse: int) -> Tensor:
    """y_i = x_0 + ... + x_i, without x_i if exclusive, from the end if reverse."""
    return _running(torch.cumsum, 0, x, axis, exclusive, reverse)


@kernel("CumProd")
@by_bits
def cum_prod(x: Tensor, axis: Int, *, exclusive: int, reverse: int) -> Tensor:
    """y_i = x_0 * ... * x_i, without x_i if exclusive, from the end if reverse."""
    return _running(torch.cumprod, 1, x, axis, exclusive, reverse)


def _running(
    scan: Callable[..., Tensor], start: int, x: Tensor, axis: int, exclusive: int, reverse: int
) -> Tensor:
    if reverse:
        x = x.flip(axis)
    if exclusive:  # the same scan, one place later
        before = (slice(None),) * (axis % x.ndim)
        first, rest = x[(*before, slice(0, 1))], x[(*before, slice(0, -1))]
        x = torch.cat([torch.full_like(first, start), rest], axis)
    y = scan(x, axis, dtype=x.dtype)
    return y.flip(axis) if reverse else y


# -- matrices --------------------------------------------------------------------------------


@kernel("Det")
def det(x: Tensor) -> Tensor:
    y: Tensor = torch.linalg.det(x.float() if x.dtype.itemsize < 4 else x)  # LAPACK's smallest
    return y.to(x.dtype)


@kernel("Einsum")
@by_bits
@float32_on_cpu
def einsum(*xs: Tensor, equation: str) -> Tensor:
    if not xs[0].is_floating_point() and not xs[0].is_cpu:
        return _einsum_without_matmul(*xs, equation=equation)
    # torch sums integers in int64, and would then multiply unlike types
    same = xs if xs[0].is_floating_point() else [x.long() for x in xs]
    y: Tensor = torch.einsum(equation, *same)
    return y.to(xs[0].dtype)


def _einsum_without_matmul(*xs: Tensor, equation: str) -> Tensor:
    """Multiply over all labels, then sum: on a GPU, torch multiplies no integer matrices."""
    terms, result = expand_equation(equation, [x.dim() for x in xs])
    labels = "".join(sorted(set("".join(terms))))
    product: Tensor = torch.einsum(f"{','.join(terms)}->{labels}", *xs)
    y: Tensor = torch.einsum(f"{labels}->{result}", product)
    return y.to(product.dtype)
