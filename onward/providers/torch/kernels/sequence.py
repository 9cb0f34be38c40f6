"""Sequences (Python lists) and optionals (a value, or None)."""

from __future__ import annotations

from typing import Any

import torch

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Branch, Int, Numbers, Tensor

kernel = OpTable()

Sequence = list[Tensor]


@kernel("SequenceEmpty")
def sequence_empty(*, dtype: int | None = None) -> Sequence:
    return []


@kernel("SequenceConstruct")
def sequence_construct(*xs: Tensor) -> Sequence:
    return list(xs)


@kernel("SequenceAt")
def sequence_at(xs: Sequence, position: Int) -> Tensor:
    return xs[position]


@kernel("SequenceInsert")
def sequence_insert(xs: Sequence, x: Tensor, position: Int | None = None) -> Sequence:
    if position is None:
        return [*xs, x]
    return [*xs[:position], x, *xs[position:]]


@kernel("SequenceErase")
def sequence_erase(xs: Sequence, position: Int | None = None) -> Sequence:
    index = -1 if position is None else position
    erased = list(xs)
    del erased[index]
    return erased


@kernel("SequenceLength")
def sequence_length(xs: Sequence, *, device: torch.device) -> Tensor:
    return torch.tensor(len(xs), dtype=torch.int64, device=device)


@kernel("SequenceMap")
def sequence_map(
    xs: Sequence, *more: Tensor | Sequence, body: Branch, outputs: int
) -> tuple[Sequence, ...]:
    """`body` of each element; other sequences are passed by element, tensors whole."""
    results = [
        body(x, *[each[index] if isinstance(each, list) else each for each in more])
        for index, x in enumerate(xs)
    ]
    return tuple([result[output] for result in results] for output in range(outputs))


@kernel("ConcatFromSequence")
def concat_from_sequence(xs: Sequence, *, axis: int, new_axis: int) -> Tensor:
    return torch.stack(xs, axis) if new_axis else torch.cat(xs, axis)


@kernel("SplitToSequence")
def split_to_sequence(
    x: Tensor, split: Numbers | None = None, *, axis: int, keepdims: int
) -> Sequence:
    """Into parts of one size (a scalar), of several (a list), or of 1."""
    if split is None and not keepdims:
        return list(x.unbind(axis))
    if not x.shape[axis] and not isinstance(split, list):
        return []  # torch would give one part of nothing
    return list(torch.split(x, 1 if split is None else split, axis))


@kernel("Optional")
def optional(x: Tensor | None = None, *, type: Any = None) -> Tensor | None:
    return x


@kernel("OptionalHasElement")
def optional_has_element(x: Tensor | None = None, *, device: torch.device) -> Tensor:
    return torch.tensor(x is not None, device=device)


@kernel("OptionalGetElement")
def optional_get_element(x: Tensor | None) -> Tensor:
    if x is None:
        raise ValueError("OptionalGetElement of an optional that is empty")
    return x
