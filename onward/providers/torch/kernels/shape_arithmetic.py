"""Host functions: operators over shapes as plain Python numbers (SymInts when compiling).

A value of rank 0 is a number, one of rank 1 a list of them: `Numbers`. A `Grid` may also have rank
2, a list of lists: the export of F.pad reorders its pads that way. Of other inputs, tensors or
sequences, only the shape or length is read. No function checks whether a number is an int: a symbol
takes the same path, and a branch on it becomes a guard.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import accumulate
from math import prod
from typing import Any

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Float, Ints, Numbers, Tensor

host = OpTable()

Number = Any  # an int, a bool, or the symbol of one
Grid = Any  # a number, a list of numbers, or a list of lists of one length
INTEGERS, BOOL = (6, 7), 9  # ONNX's numbers


# -- shapes and lengths ------------------------------------------------------------------------


@host("Shape")
def shape(x: Tensor | Numbers, *, start: int, end: int | None = None) -> Numbers:
    return _sizes(x)[start:end]


@host("Size")
def size(x: Tensor | Numbers) -> Numbers:
    return prod(_sizes(x))


def _sizes(x: Tensor | Grid) -> list[Number]:
    if isinstance(x, Tensor):
        return list(x.shape)
    if not isinstance(x, list):
        return []
    return [len(x), *_sizes(x[0])] if x else [0]


@host("SequenceLength")
def sequence_length(xs: list[Tensor]) -> Numbers:
    return len(xs)


@host("OptionalHasElement")
def optional_has_element(x: Tensor | None = None) -> Numbers:
    return x is not None


# -- lists -------------------------------------------------------------------------------------


@host("Identity")
def identity(x: Numbers) -> Numbers:
    return x


@host("Gather")
def gather(x: Numbers, index: Numbers, *, axis: int) -> Numbers:
    return _each(lambda i: x[i], index)


@host("Concat")
def concat(*xs: Numbers, axis: int) -> Numbers:
    return [number for x in xs for number in x]


@host("Split")
def split(
    x: Numbers,
    split: Numbers | None = None,
    *,
    axis: int,
    num_outputs: int | None = None,
    outputs: int,
) -> tuple[Numbers, ...]:
    if split is None:
        parts = num_outputs or outputs
        split = [(len(x) + parts - 1) // parts] * parts  # the last list ends where x does
    ends = list(accumulate(split))
    return tuple(x[end - length : end] for end, length in zip(ends, split, strict=True))


@host("Slice")
def slice_(
    x: Grid,
    starts: Numbers,
    ends: Numbers,
    axes: Numbers | None = None,
    steps: Numbers | None = None,
) -> Grid:
    rank = len(_sizes(x))
    axes = axes or list(range(len(starts)))
    steps = steps or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        part = slice(start, end, step)
        x = x[part] if axis % rank == 0 else [row[part] for row in x]
    return x


@host("Transpose")
def transpose(x: Grid, *, perm: list[int] | None = None) -> Grid:
    turned = len(_sizes(x)) == 2 and perm != [0, 1]
    return [list(column) for column in zip(*x, strict=True)] if turned else x


@host("Unsqueeze")
def unsqueeze(x: Numbers, axes: Numbers) -> Numbers:
    return [x] if axes else x


@host("NonZero")
def non_zero(x: Numbers) -> Grid:
    """The indices of numbers that are not 0: one row, since a list has one axis."""
    return [[i for i, number in enumerate(x) if number]]


@host("Squeeze")
def squeeze(x: Grid, axes: Numbers | None = None) -> Numbers:
    if isinstance(x, list) and x and isinstance(x[0], list):
        ones = [axis for axis, size in enumerate(_sizes(x)) if size == 1]
        dropped = ones if axes is None else [axis % 2 for axis in axes]
        rows = [row[0] for row in x] if 1 in dropped else x
        return rows[0] if 0 in dropped else rows
    if not isinstance(x, list) or axes == [] or (axes is None and len(x) != 1):
        return x
    (number,) = x
    return number


@host("Reshape")
def reshape(x: Grid, shape: Numbers, *, allowzero: int) -> Grid:
    numbers = _flat(x)
    if len(shape) < 2:
        return numbers if shape else numbers[0]
    rows, columns = [size or _sizes(x)[axis] for axis, size in enumerate(shape)]
    columns = len(numbers) // rows if columns < 0 else columns
    return [numbers[i : i + columns] for i in range(0, len(numbers), columns)]


def _flat(x: Grid) -> list[Number]:
    return [number for item in x for number in _flat(item)] if isinstance(x, list) else [x]


@host("Expand")
def expand(x: Numbers, shape: Numbers) -> Numbers:
    return _map(lambda number, _: number, x, [None] * shape[0]) if shape else x


@host("ConstantOfShape")
def constant_of_shape(shape: Numbers, *, value: Float) -> Numbers:
    return [value] * shape[0] if shape else value


@host("Range")
def range_(start: Numbers, limit: Numbers, delta: Numbers, *, stash_type: int = 1) -> Numbers:
    return list(range(start, limit, delta))


# -- arithmetic --------------------------------------------------------------------------------


@host("Cast")
def cast(
    x: Numbers, *, to: int, saturate: int = 1, round_mode: str = "up", input_type: int
) -> Numbers:
    if to == BOOL:
        return _each(lambda number: number != 0, x)
    if input_type == BOOL:
        return _each(lambda number: 1 if number else 0, x)
    return x if input_type in INTEGERS else _each(int, x)  # a constant may be a float


@host("Add")
def add(a: Numbers, b: Numbers) -> Numbers:
    return _map(operator.add, a, b)


@host("Sub")
def sub(a: Numbers, b: Numbers) -> Numbers:
    return _map(operator.sub, a, b)


@host("Mul")
def mul(a: Numbers, b: Numbers) -> Numbers:
    return _map(operator.mul, a, b)


@host("Div")
def div(a: Numbers, b: Numbers) -> Numbers:
    return _map(_quotient, a, b)


@host("Mod")
def mod(a: Numbers, b: Numbers, *, fmod: int) -> Numbers:
    """The remainder has the divisor's sign, or with `fmod` the dividend's."""
    return _map(_remainder if fmod else operator.mod, a, b)


def _quotient(a: Number, b: Number) -> Number:
    """ONNX's integer division rounds towards zero."""
    return -(-a // b) if a * b < 0 else a // b


def _remainder(a: Number, b: Number) -> Number:
    return a - b * _quotient(a, b)


@host("Neg")
def neg(x: Numbers) -> Numbers:
    return _each(operator.neg, x)


@host("Abs")
def abs_(x: Numbers) -> Numbers:
    return _each(abs, x)


@host("Sum")
def sum_(*xs: Numbers) -> Numbers:
    return _fold(operator.add, xs)


@host("Max")
def max_(*xs: Numbers) -> Numbers:
    return _fold(max, xs)


@host("Min")
def min_(*xs: Numbers) -> Numbers:
    return _fold(min, xs)


@host("Clip")
def clip(x: Numbers, low: Numbers | None = None, high: Numbers | None = None) -> Numbers:
    x = x if low is None else _map(max, x, low)
    return x if high is None else _map(min, x, high)


@host("CumSum")
def cum_sum(x: Numbers, axis: Numbers, *, exclusive: int, reverse: int) -> Numbers:
    x = x[::-1] if reverse else x
    sums = list(accumulate(x))
    if exclusive:
        sums = [0, *sums[:-1]] if sums else []
    return sums[::-1] if reverse else sums


# -- comparison and choice ---------------------------------------------------------------------


@host("Equal")
def equal(a: Numbers, b: Numbers) -> Numbers:
    return _map(operator.eq, a, b)


@host("Less")
def less(a: Numbers, b: Numbers) -> Numbers:
    return _map(operator.lt, a, b)


@host("LessOrEqual")
def less_or_equal(a: Numbers, b: Numbers) -> Numbers:
    return _map(operator.le, a, b)


@host("Greater")
def greater(a: Numbers, b: Numbers) -> Numbers:
    return _map(operator.gt, a, b)


@host("GreaterOrEqual")
def greater_or_equal(a: Numbers, b: Numbers) -> Numbers:
    return _map(operator.ge, a, b)


@host("Not")
def not_(x: Numbers) -> Numbers:
    return _each(operator.not_, x)


@host("And")
def and_(a: Numbers, b: Numbers) -> Numbers:
    return _map(lambda p, q: p and q, a, b)


@host("Or")
def or_(a: Numbers, b: Numbers) -> Numbers:
    return _map(lambda p, q: p or q, a, b)


@host("Xor")
def xor(a: Numbers, b: Numbers) -> Numbers:
    return _map(lambda p, q: not q if p else q, a, b)


@host("Where")
def where(condition: Numbers, a: Numbers, b: Numbers) -> Numbers:
    return _map(lambda holds, yes, no: yes if holds else no, condition, a, b)


# -- reduction ---------------------------------------------------------------------------------


@host("ReduceSum")
def reduce_sum(
    x: Numbers, axes: Numbers | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Numbers:
    return _reduced(sum, x, axes, keepdims, noop_with_empty_axes)


@host("ReduceProd")
def reduce_prod(
    x: Numbers, axes: Numbers | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Numbers:
    return _reduced(prod, x, axes, keepdims, noop_with_empty_axes)


@host("ReduceMax")
def reduce_max(
    x: Numbers, axes: Numbers | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Numbers:
    return _reduced(max, x, axes, keepdims, noop_with_empty_axes)


@host("ReduceMin")
def reduce_min(
    x: Numbers, axes: Numbers | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Numbers:
    return _reduced(min, x, axes, keepdims, noop_with_empty_axes)


def _reduced(
    function: Callable[[Any], Number], x: Numbers, axes: Ints | None, keepdims: int, noop: int
) -> Numbers:
    if not isinstance(x, list) or (noop and not axes):
        return x
    return [function(x)] if keepdims else function(x)


# -- numbers and lists alike -------------------------------------------------------------------


def _each(function: Callable[[Number], Number], x: Numbers) -> Numbers:
    return [function(number) for number in x] if isinstance(x, list) else function(x)


def _map(function: Callable[..., Number], *xs: Numbers) -> Numbers:
    """The function of numbers; of lists, element by element, shorter ones broadcast."""
    lengths = [len(x) for x in xs if isinstance(x, list)]
    if not lengths:
        return function(*xs)
    length = next((n for n in lengths if n != 1), 1)  # a list of none beats a list of one
    stretched = [
        x if isinstance(x, list) and len(x) == length else _repeated(x, length) for x in xs
    ]
    return [function(*numbers) for numbers in zip(*stretched, strict=True)]


def _repeated(x: Numbers, length: int) -> list[Number]:
    (number,) = x if isinstance(x, list) else (x,)
    return [number] * length


def _fold(function: Callable[[Number, Number], Number], xs: tuple[Numbers, ...]) -> Numbers:
    folded, *rest = xs
    for x in rest:
        folded = _map(function, folded, x)
    return folded
