"""Sums of floats without rounding errors: the same total for every order of the numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray[Any, Any]

_DIGITS = 53  # bits of a float64's mantissa
_LOW = 27  # bits of its lower half
_ROWS = 1 << 24  # numbers added at once: bincount's float64 sums of 27-bit integers stay exact
_MOST_CELLS = 1 << 22  # counted at once: 32 MiB for each half
_SPLIT = 2.0**27 + 1  # Veltkamp's constant, which splits a float64 into two halves


class ExactSums:
    """Exact totals of finite float64 numbers, one total per cell.

    x = digits * 2 ** (exponent - 53), where digits are integers: digits of equal exponents are
    added as integers, in two halves, and only the total is rounded.

    >>> sums = ExactSums()
    >>> sums.add([1e16, 1.0, -1e16])
    >>> sums.total()
    Fraction(1, 1)
    """

    def __init__(self, cells: int = 1) -> None:
        self.cells = cells
        self._halves: dict[int, Array] = {}  # exponent: (2, cells), the high and low halves

    def add(self, values: ArrayLike, cells: Array | None = None) -> None:
        """Add each number to its cell; None: to the only one."""
        flat = np.asarray(values, np.float64).ravel()
        for start in range(0, flat.size, _ROWS):
            rows = slice(start, start + _ROWS)
            self._add_rows(flat[rows], None if cells is None else cells[rows])

    def add_products(self, *factors: Array, cells: Array | None = None) -> None:
        """Add the product of each row's factors, without rounding it."""
        terms = [factors[0]]
        for factor in factors[1:]:
            terms = [part for term in terms for part in _exact_product(term, factor)]
        for term in terms:
            if term.any():  # the rests of short numbers, such as float32's, are zeros
                self.add(term, cells)

    def merge(self, other: ExactSums) -> None:
        """Add the totals of as many cells."""
        for exponent, halves in other._halves.items():
            self._halves[exponent] = self._halves.get(exponent, 0) + halves

    def totals(self) -> list[Fraction]:
        """The exact total of each cell."""
        found = [Fraction(0)] * self.cells
        for cell in self._used_cells():
            found[cell] = self._total_of(cell)
        return found

    def floats(self) -> Array:
        """The total of each cell, rounded once."""
        found = np.zeros(self.cells)
        for cell in self._used_cells():
            found[cell] = float(self._total_of(cell))
        return found

    def total(self) -> Fraction:
        """The exact total of all cells."""
        return sum(self.totals(), Fraction(0))

    def _used_cells(self) -> Array:
        return np.flatnonzero(sum(halves.any(axis=0) for halves in self._halves.values()))

    def _total_of(self, cell: int) -> Fraction:
        parts = (
            _scaled((int(halves[0, cell]) << _LOW) + int(halves[1, cell]), exponent)
            for exponent, halves in self._halves.items()
        )
        return sum(parts, Fraction(0))

    def _add_rows(self, values: Array, cells: Array | None) -> None:
        used = values != 0
        if not used.all():
            values, cells = values[used], None if cells is None else cells[used]
        if not values.size:
            return
        mantissas, exponents = np.frexp(values)
        digits = np.ldexp(mantissas, _DIGITS).astype(np.int64)
        lowest = int(exponents.min())
        span = int(exponents.max()) - lowest + 1
        if span > 1 and span * self.cells > _MOST_CELLS:
            for exponent in np.unique(exponents):
                same = exponents == exponent
                self._add_rows(values[same], None if cells is None else cells[same])
            return
        key = (exponents.astype(np.int64) - lowest) * self.cells + (0 if cells is None else cells)
        parts = (digits >> _LOW, digits & ((1 << _LOW) - 1))
        sums = [np.bincount(key, part, span * self.cells).astype(np.int64) for part in parts]
        added = np.stack(sums).reshape(2, span, self.cells)
        for i in np.flatnonzero(added.any(axis=(0, 2))):
            exponent = lowest + int(i)
            self._halves[exponent] = self._halves.get(exponent, 0) + added[:, i]


def _scaled(digits: int, exponent: int) -> Fraction:
    """digits * 2 ** (exponent - 53)"""
    power = exponent - _DIGITS
    return Fraction(digits << power) if power >= 0 else Fraction(digits, 1 << -power)


def _exact_product(a: Array, b: Array) -> tuple[Array, Array]:
    """(p, e) with a * b = p + e exactly: Dekker's product."""
    p = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    e = ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low
    return p, e


def _halves(a: Array) -> tuple[Array, Array]:
    scaled = _SPLIT * a
    high = scaled - (scaled - a)
    return high, a - high
