"""Rules that compute an Einsum of two operands as a MatMul, or as a Mul if it sums nothing.

    einsum("bted,btei->eid", g, h) = matmul(transpose(h'), transpose(g'))

h' is h with the axes bt, e, i; g' so. onnxruntime's MatMul reads such transposed operands in place,
its Einsum copies every operand whose axes are in another order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.simplify.einsum_pairs import ASSUMED, Operand, plain_equation
from onward.passes.value_facts import Dim, dims

rule = Rules()  # after mixed precision, which computes an Einsum in 16 bits

BATCH, OUTER, SUMMED = range(3)  # an operand's groups of letters; outer: of its rows or columns
LEFT, RIGHT = (BATCH, OUTER, SUMMED), (BATCH, SUMMED, OUTER)  # as MatMul wants them
READ_IN_PLACE = (LEFT, RIGHT, (OUTER, BATCH, SUMMED), (SUMMED, BATCH, OUTER))


@rule("Einsum")
def product_without_sum(op: Ops, node: ir.Node) -> Replacement:
    """einsum("abc,ab->abc", x, y) = x * unsqueeze(y)"""
    found = plain_equation(node) if len(node.inputs) == 2 else None
    if found is None:
        return None
    [(a, left), (b, right)], result = found
    if {*result} != {*left, *right}:
        return None
    return op.Mul(_aligned(op, a, left, result), _aligned(op, b, right, result))


@rule("Einsum")
def matrix_product(op: Ops, node: ir.Node) -> Replacement:
    """einsum("bik,bjk->bij", x, y) = matmul(x, transpose(y))"""
    found = plain_equation(node) if len(node.inputs) == 2 else None
    if found is None:
        return None
    operands, result = found
    (_, left), (_, right) = operands
    shared = {*left} & {*right}
    sizes = _Sizes(operands)
    if not shared - {*result} or {*left, *right} - shared - {*result} or not sizes.agree():
        return None
    best = min(_products(operands, result), key=lambda product: product.cost(sizes))
    return best.make(op, sizes) if best.is_simple(sizes) else None


class _Sizes:
    """The size of each letter."""

    def __init__(self, operands: Sequence[Operand]) -> None:
        self._axes: dict[str, list[tuple[ir.Value, int, Dim]]] = {}
        for value, term in operands:
            for axis, (letter, size) in enumerate(zip(term, dims(value) or ())):
                self._axes.setdefault(letter, []).append((value, axis, size))

    def agree(self) -> bool:
        """Whether no axis may be of size 1 where the other operand's is not, and none is empty."""
        for axes in self._axes.values():
            sizes = {size for _, _, size in axes}
            if len(sizes) > 1 or 0 in sizes or (len(axes) > 1 and None in sizes):
                return False
        return True

    def assumed(self, letters: str) -> int:
        """The count of numbers, for a comparison of costs."""
        known = (self._known(letter) for letter in letters)
        return math.prod(ASSUMED if size is None else size for size in known)

    def _known(self, letter: str) -> int | None:
        size = self._axes[letter][0][2]
        return size if isinstance(size, int) else None

    def unknown(self, groups: Sequence[str]) -> int:
        """How many groups have no known size."""
        return sum(any(self._known(letter) is None for letter in group) for group in groups)

    def reshape(self, op: Ops, value: ir.Value, groups: Sequence[str]) -> ir.Value:
        """The value with one axis for each group of letters; several unknown ones are single."""
        shape = [-1 if self.unknown([group]) else self.assumed(group) for group in groups]
        if shape.count(-1) <= 1:
            return op.Reshape(value, shape)
        parts = [self._size(op, group) if n < 0 else [n] for group, n in zip(groups, shape)]
        return op.Reshape(value, op.Concat(*parts, axis=0), allowzero=1)

    def _size(self, op: Ops, letter: str) -> ir.Value:
        """The size of a letter's axis, as a vector of one number."""
        value, axis, _ = self._axes[letter][0]
        return op.Shape(value, start=axis, end=axis + 1)


@dataclass(frozen=True)
class _Factor:
    """An operand of a MatMul, and its groups of letters."""

    value: ir.Value
    term: str
    groups: tuple[str, str, str]
    wanted: tuple[int, int, int]  # the order of the groups

    def cost(self, sizes: _Sizes) -> tuple[int, int]:
        """The numbers that a Transpose copies, and whether one is read in place."""
        if self._order_in_place() is None:
            return sizes.assumed(self.term), 0
        return 0, self._letters(self.wanted) != self.term

    def has_matrices(self) -> bool:
        """Whether its last two axes are the matrices: it is not reshaped."""
        batch, outer, summed = self.groups
        return len(outer) == len(summed) == 1 and self.term.startswith(batch)

    def transposed(self, op: Ops) -> ir.Value:
        return _transposed(op, self.value, self.term, self._letters(self.wanted))

    def matrices(self, op: Ops, sizes: _Sizes) -> ir.Value:
        """The operand with one axis for each group."""
        value, order = self.value, self._order_in_place()
        if order is None:
            value, order = self.transposed(op), self.wanted
        present = [i for i in order if i != BATCH or self.groups[BATCH]]
        if any(len(self.groups[i]) != 1 for i in present):
            value = sizes.reshape(op, value, [self.groups[i] for i in present])
        wanted = [i for i in self.wanted if i in present]
        return _transposed(op, value, present, wanted)

    def _order_in_place(self) -> tuple[int, int, int] | None:
        """The order of the groups in the term, if MatMul can read it there."""
        return next((order for order in READ_IN_PLACE if self._letters(order) == self.term), None)

    def _letters(self, order: Sequence[int]) -> str:
        return "".join(self.groups[i] for i in order)


@dataclass(frozen=True)
class _Product:
    """A MatMul, and the letters of the Einsum's result."""

    left: _Factor
    right: _Factor
    result: str

    def cost(self, sizes: _Sizes) -> tuple[int, int]:
        """The numbers that Transposes copy, and the Transposes that are read in place."""
        costs = [self.left.cost(sizes), self.right.cost(sizes)]
        costs.append((0 if self._made() == self.result else sizes.assumed(self.result), 0))
        return sum(copied for copied, _ in costs), sum(in_place for _, in_place in costs)

    def is_simple(self, sizes: _Sizes) -> bool:
        """Whether no shape of an operand must be computed, which takes many small nodes."""
        factors = self.left, self.right
        return self._has_matrices() or all(sizes.unknown(each.groups) <= 1 for each in factors)

    def make(self, op: Ops, sizes: _Sizes) -> ir.Value:
        if self._has_matrices():
            product = op.MatMul(self.left.transposed(op), self.right.transposed(op))
        else:
            product = op.MatMul(self.left.matrices(op, sizes), self.right.matrices(op, sizes))
            if any(len(group) != 1 for group in self._groups()):
                product = sizes.reshape(op, product, self._made())
        return _transposed(op, product, self._made(), self.result)

    def _has_matrices(self) -> bool:
        return self.left.has_matrices() and self.right.has_matrices()

    def _groups(self) -> list[str]:
        """The groups of letters of MatMul's result."""
        batch, rows, _ = self.left.groups
        return [*([batch] if batch else []), rows, self.right.groups[OUTER]]

    def _made(self) -> str:
        return "".join(self._groups())


def _products(operands: Sequence[Operand], result: str) -> Iterator[_Product]:
    """Every order of the operands, and of letters within a group as some term has them."""
    for (a, left), (b, right) in (operands, operands[::-1]):
        shared, terms = {*left} & {*right}, (result, left, right)
        for batch, rows, summed, columns in itertools.product(
            _orders(shared & {*result}, terms),
            _orders({*left} - shared, terms),
            _orders(shared - {*result}, terms),
            _orders({*right} - shared, terms),
        ):
            yield _Product(
                _Factor(a, left, (batch, rows, summed), LEFT),
                _Factor(b, right, (batch, columns, summed), RIGHT),
                result,
            )


def _orders(letters: set[str], terms: Sequence[str]) -> list[str]:
    """The orders in which terms have these letters."""
    orders = ("".join(c for c in term if c in letters) for term in terms)
    return list(dict.fromkeys(order for order in orders if len(order) == len(letters)))


def _transposed(
    op: Ops, value: ir.Value, axes: Sequence[str | int], wanted: Sequence[str | int]
) -> ir.Value:
    """A value with its axes in another order."""
    return value if axes == wanted else op.Transpose(value, perm=[axes.index(c) for c in wanted])


def _aligned(op: Ops, value: ir.Value, term: str, result: str) -> ir.Value:
    """A value with its axes in the order of the result, and axes of size 1 for the others."""
    value = _transposed(op, value, term, "".join(sorted(term, key=result.index)))
    missing = [place for place, letter in enumerate(result) if letter not in term]
    leading = next((n for n, place in enumerate(missing) if place != n), len(missing))
    return op.Unsqueeze(value, missing) if missing[leading:] else value
