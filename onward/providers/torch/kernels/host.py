"""What is computed with shapes alone: plain Python numbers (SymInts when compiling).

A value is an int when its rank is 0 and a list of ints when its rank is 1. Tensors come in only
through Shape and Size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any

from onward.graph.table import OpTable
from onward.providers.torch.types import Tensor

host = OpTable()
Number = Any  # an int, a bool or a SymInt
Numbers = Any  # a Number, or a list of them


@host("Shape")
def shape(x: Tensor, *, start: int = 0, end: int | None = None) -> list[Number]:
    return list(x.shape)[start:end]


@host("Size")
def size(x: Tensor) -> Number:
    return prod(x.shape)


@host("Identity")
def identity(x: Numbers) -> Numbers:
    return x


@host("Cast")
def cast(x: Numbers, *, to: int, saturate: int = 1, round_mode: str = "up") -> Numbers:
    return _each(bool if to == 9 else lambda number: number, x)


@host("Gather")
def gather(x: list[Number], index: Numbers, *, axis: int) -> Numbers:
    return _each(lambda i: x[i], index)


@host("Concat")
def concat(*xs: list[Number], axis: int) -> list[Number]:
    return [number for x in xs for number in x]


@host("Slice")
def slice_(
    x: list[Number],
    starts: list[int],
    ends: list[int],
    axes: list[int] | None = None,
    steps: list[int] | None = None,
) -> list[Number]:
    step = steps[0] if steps else 1
    start, end = starts[0], ends[0]
    if step < 0 and end < -len(x):
        return x[start::step]
    return x[start:end:step]


@host("Unsqueeze")
def unsqueeze(x: Number, axes: list[int]) -> list[Number]:
    return [x]


@host("Squeeze")
def squeeze(x: Numbers, axes: list[int] | None = None) -> Number:
    return x[0] if isinstance(x, list) else x


@host("Reshape")
def reshape(x: Numbers, shape: list[int], *, allowzero: int) -> Numbers:
    flat = x if isinstance(x, list) else [x]
    return flat if shape else flat[0]


def _truncated(a: Number, b: Number) -> Number:
    """ONNX's integer division rounds towards zero."""
    if isinstance(a, int) and isinstance(b, int) and (a < 0) != (b < 0):
        return -(abs(a) // abs(b))
    return a // b


@host("Add")
def add(a: Numbers, b: Numbers) -> Numbers:
    return _pairwise(operator.add, a, b)


@host("Sub")
def sub(a: Numbers, b: Numbers) -> Numbers:
    return _pairwise(operator.sub, a, b)


@host("Mul")
def mul(a: Numbers, b: Numbers) -> Numbers:
    return _pairwise(operator.mul, a, b)


@host("Div")
def div(a: Numbers, b: Numbers) -> Numbers:
    return _pairwise(_truncated, a, b)


@host("Equal")
def equal(a: Numbers, b: Numbers) -> Numbers:
    return _pairwise(operator.eq, a, b)


@host("Max")
def max_(*xs: Numbers) -> Numbers:
    return _folded(max, xs)


@host("Min")
def min_(*xs: Numbers) -> Numbers:
    return _folded(min, xs)


@host("Neg")
def neg(x: Numbers) -> Numbers:
    return _each(operator.neg, x)


@host("Where")
def where(condition: Numbers, a: Numbers, b: Numbers) -> Numbers:
    lists = [x for x in (condition, a, b) if isinstance(x, list)]
    if not lists:
        return a if condition else b
    length = max(map(len, lists))
    triples = zip(*(_stretched(x, length) for x in (condition, a, b)), strict=True)
    return [yes if c else no for c, yes, no in triples]


@host("ReduceProd")
def reduce_prod(
    x: Numbers, axes: list[int] | None = None, *, keepdims: int, noop_with_empty_axes: int = 0
) -> Numbers:
    product = prod(x) if isinstance(x, list) else x
    return [product] if keepdims and isinstance(x, list) else product


@host("ConstantOfShape")
def constant_of_shape(shape: list[int], *, value: Number) -> Numbers:
    return [value] * shape[0] if shape else value


def _each(function: Callable[[Number], Number], x: Numbers) -> Numbers:
    return [function(number) for number in x] if isinstance(x, list) else function(x)


def _stretched(x: Numbers, length: int) -> list[Number]:
    if not isinstance(x, list):
        return [x] * length
    return x * length if len(x) == 1 else x


def _pairwise(function: Callable[[Number, Number], Number], a: Numbers, b: Numbers) -> Numbers:
    if not isinstance(a, list) and not isinstance(b, list):
        return function(a, b)
    length = max(len(x) for x in (a, b) if isinstance(x, list))
    if any(isinstance(x, list) and len(x) == 0 for x in (a, b)):
        return []
    return [function(p, q) for p, q in zip(_stretched(a, length), _stretched(b, length), strict=True)]


def _folded(function: Callable[[Number, Number], Number], xs: tuple[Numbers, ...]) -> Numbers:
    first, *rest = xs
    for x in rest:
        first = _pairwise(function, first, x)
    return first
