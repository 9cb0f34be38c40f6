"""Axes: which positions along the axes of a model's values can only be removed together.

An axis of a value is a pair (value, number). `tie` says that two axes have the same positions, as
the channels of a Relu's input and output; `tie_positions` ties single positions, as Concat does.
A pinned position is never removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]
Axis = tuple[ir.Value, int]


@dataclass(frozen=True)
class Factor:
    """One way to tie two axes of different sizes: the smaller is one factor of the larger.

    Attributes:
        large, small: the axes; the size of the first is a multiple of the other's
        block: position i of the large axis is part of position i // block % size of the small one
        others: axes that must stay whole then
    """

    large: Axis
    small: Axis
    block: int
    others: tuple[Axis, ...] = ()


class Axes:
    """A union-find of axes, and ties between single positions of them."""

    def __init__(self) -> None:
        self._numbers: dict[Axis, int] = {}
        self._sizes: list[int] = []
        self._parents: list[int] = []
        self._pins: list[tuple[int, Array | None]] = []
        self._ties: list[tuple[int, Array, int, Array]] = []
        self._choices: list[tuple[Factor, ...]] = []
        self._touched: set[Axis] = set()

    # -- what rules say ------------------------------------------------------------------------

    def tie(self, a: Axis, b: Axis) -> None:
        """Two axes have the same positions; one of unknown or other size pins the other."""
        first, second = self._number(a), self._number(b)
        if first is None or second is None or self._sizes[first] != self._sizes[second]:
            self.pin(a)
            self.pin(b)
            return
        self._parents[self._root(first)] = self._root(second)

    def tie_positions(self, a: Axis, places: Any, b: Axis, others: Any) -> None:
        """Position places[i] of one axis and others[i] of another go together."""
        first, second = self._number(a), self._number(b)
        if first is None or second is None:
            self.pin(a)
            self.pin(b)
            return
        self._ties.append((first, np.asarray(places), second, np.asarray(others)))

    def tie_all(self, a: Axis, groups: Any) -> None:
        """Positions of one axis with the same number in `groups` go together."""
        numbers = np.asarray(groups)
        _, firsts, inverse = np.unique(numbers, return_index=True, return_inverse=True)
        self.tie_positions(a, np.arange(len(numbers)), a, firsts[inverse])

    def tie_factor(self, *choices: Factor) -> None:
        """Tie by the first of these that pins nothing else; decided when all rules have run."""
        for choice in choices:
            self._touched.update({choice.large, choice.small, *choice.others})
        self._choices.append(choices)

    def pin(self, axis: Axis, places: Any = None) -> None:
        """Keep an axis whole, or some positions of it."""
        number = self._number(axis)
        if number is not None:
            self._pins.append((number, None if places is None else np.asarray(places)))

    def free(self, axis: Axis) -> None:
        """An axis that is as long as its readers need it: nothing to tie."""
        self._number(axis)

    def size(self, axis: Axis) -> int | None:
        """The size of an axis; None if it is not known."""
        dims = known_sizes(axis[0])
        return dims[axis[1]] if dims is not None and axis[1] < len(dims) else None

    def begin_node(self) -> None:
        """Forget which axes were mentioned: the next node's rule begins."""
        self._touched = set()

    def pin_rest(self, values: Sequence[ir.Value | None]) -> None:
        """Pin every axis of these values that was not mentioned since `begin_node`."""
        for value in values:
            if value is None:
                continue
            for place in range(len(known_sizes(value) or ())):
                if (value, place) not in self._touched:
                    self.pin((value, place))

    def _number(self, axis: Axis) -> int | None:
        value, place = axis
        dims = known_sizes(value)
        if dims is None:
            return None
        axis = (value, place % len(dims)) if dims else axis
        self._touched.add(axis)
        if axis not in self._numbers:
            size = dims[axis[1]] if axis[1] < len(dims) else None
            if size is None:
                return None
            self._numbers[axis] = len(self._sizes)
            self._parents.append(len(self._sizes))
            self._sizes.append(size)
        return self._numbers[axis]

    def _root(self, number: int) -> int:
        while self._parents[number] != number:
            self._parents[number] = self._parents[self._parents[number]]
            number = self._parents[number]
        return number

    # -- what follows --------------------------------------------------------------------------

    def resolve(self) -> Positions:
        """Decide open choices, and find which positions go together."""
        whole = self._find_positions()
        pinned = {root for root in whole.starts if whole.is_pinned(root)}
        for choices in self._choices:
            self._decide(choices, pinned)
        return self._find_positions()

    def _decide(self, choices: tuple[Factor, ...], pinned: set[int]) -> None:
        for choice in choices:
            large, small = self._number(choice.large), self._number(choice.small)
            if large is None or small is None:
                continue
            if {self._root(large), self._root(small)} & pinned:
                continue
            places = np.arange(self._sizes[large])
            parts = places // choice.block % self._sizes[small]
            self._ties.append((large, places, small, parts))
            for other in choice.others:
                self._pin_now(other, pinned)
            return
        for choice in choices:
            for axis in (choice.large, choice.small, *choice.others):
                self._pin_now(axis, pinned)

    def _pin_now(self, axis: Axis, pinned: set[int]) -> None:
        number = self._number(axis)
        if number is not None:
            self._pins.append((number, None))
            pinned.add(self._root(number))

    def _find_positions(self) -> Positions:
        starts: dict[int, int] = {}
        total = 0
        for number, size in enumerate(self._sizes):
            if self._root(number) == number:
                starts[number] = total
                total += size
        begin = [starts[self._root(number)] for number in range(len(self._sizes))]
        left = [begin[a] + places for a, places, _, _ in self._ties]
        right = [begin[b] + others for _, _, b, others in self._ties]
        labels = _connect(total, _joined(left), _joined(right))
        pinned = np.zeros(total, bool)
        for number, places in self._pins:
            first = begin[number]
            chosen = slice(first, first + self._sizes[number]) if places is None else first + places
            pinned[labels[chosen]] = True
        where = {axis: begin[number] for axis, number in self._numbers.items()}
        ends = {root: start + self._sizes[root] for root, start in starts.items()}
        return Positions(labels, pinned[labels], where, starts, ends)


@dataclass(frozen=True)
class Positions:
    """Every position of a model's axes; those with the same label are removed together.

    Attributes:
        labels: the label of each position: the number of one position of its unit
        pinned: whether a position has to stay
        where: the first position of each axis; tied axes share theirs
        starts, ends: first position and the one after the last, of each set of tied axes
    """

    labels: Array
    pinned: Array
    where: dict[Axis, int]
    starts: dict[int, int]
    ends: dict[int, int]

    def is_pinned(self, root: int) -> bool:
        """Whether no position of a set of axes can be removed."""
        return bool(self.pinned[self.starts[root] : self.ends[root]].all())

    def of(self, axis: Axis) -> Array | None:
        """The labels along an axis; None if it was never mentioned."""
        start = self.where.get(axis)
        if start is None:
            return None
        size = (known_sizes(axis[0]) or ())[axis[1]]
        return self.labels[start : start + int(size or 0)]


def known_sizes(value: ir.Value) -> tuple[int | None, ...] | None:
    """The sizes of a value's axes, None for an unknown one; None if its rank is not known."""
    tensor = value.const_value
    if tensor is not None:
        return tuple(int(size) for size in tensor.shape.numpy())
    if value.shape is None:
        return None
    return tuple(size if isinstance(size, int) and size >= 0 else None for size in value.shape)


def rank(value: ir.Value | None) -> int | None:
    """The number of a value's axes; None if it is not known."""
    sizes = known_sizes(value) if value is not None else None
    return None if sizes is None else len(sizes)


def constant(value: ir.Value | None) -> Array | None:
    """The data of a constant that no feed can replace; None for another value."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()


def _joined(arrays: list[Array]) -> Array:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


def _connect(count: int, left: Array, right: Array) -> Array:
    """The least number that each of `count` numbers is connected with."""
    labels = np.arange(count)
    while True:
        a, b = labels[left], labels[right]
        differ = a != b
        if not differ.any():
            return labels
        left, right, a, b = left[differ], right[differ], a[differ], b[differ]
        least = np.minimum(a, b)
        np.minimum.at(labels, a, least)
        np.minimum.at(labels, b, least)
        while not np.array_equal(shorter := labels[labels], labels):
            labels = shorter
