"""Read expressions as polynomials, to recognise a formula however it is written.

`x * 0.5 * (1 + erf(x / 1.41))`, `0.5 * (x + x * erf(0.707 * x))` and every other order of the same
sums and products have one and the same polynomial in x and e = erf(...): 0.5 x + 0.5 x e.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onward.passes.value_facts import made_by, scalar

Powers = tuple[int, ...]
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Neg", "Pow")
_TOLERANCES: dict[ir.DataType | None, float] = {
    ir.DataType.BFLOAT16: 1e-2
}  # products of two numbers with 8 bits each
_DEEPEST = 10  # levels; the deepest formula of `fuse/` has seven


@dataclass
class PolynomialTerms:
    """Coefficients by the powers of the symbols, and the nodes that compute it."""

    terms: dict[Powers, float]
    nodes: set[ir.Node] = field(default_factory=set)

    def equals(self, terms: dict[Powers, float], dtype: ir.DataType | None = None) -> bool:
        """Whether the coefficients are these, up to an exporter's rounding to the type."""
        tolerance = _TOLERANCES.get(dtype, 1e-3)
        ours = {powers: c for powers, c in self.terms.items() if c != 0}
        return ours.keys() == terms.keys() and all(
            math.isclose(ours[powers], c, rel_tol=tolerance) for powers, c in terms.items()
        )


def polynomial(value: ir.Value | None, symbols: Sequence[ir.Value]) -> PolynomialTerms | None:
    """The value as a polynomial in the symbols; None if it is not one."""
    one = (0,) * len(symbols)
    known: dict[ir.Value | None, PolynomialTerms | None] = {}
    for index, symbol in enumerate(symbols):
        known[symbol] = PolynomialTerms({(*one[:index], 1, *one[index + 1 :]): 1.0})

    def expand(value: ir.Value | None, depth: int) -> PolynomialTerms | None:
        if value not in known:
            known[value] = compute(value, depth)
        return known[value]

    def compute(value: ir.Value | None, depth: int) -> PolynomialTerms | None:
        number = scalar(value)
        if number is not None:
            return PolynomialTerms({one: number})
        node = made_by(value, *_ARITHMETIC)
        if node is None or depth > _DEEPEST:
            return None
        parts = [expand(operand, depth + 1) for operand in node.inputs]
        whole = [part for part in parts if part is not None]
        found = _combine(node.op_type, whole, one) if len(whole) == len(parts) else None
        if found is not None:
            found.nodes.update({node}, *(part.nodes for part in whole))
        return found

    return expand(value, 0)


def operands(value: ir.Value | None) -> list[ir.Value]:
    """The value and the operands of its arithmetic, outermost first, without constants."""
    found: dict[ir.Value, None] = {}
    level = [value]
    for _ in range(_DEEPEST):
        level = [v for v in level if v is not None and v not in found and scalar(v) is None]
        found.update(dict.fromkeys(v for v in level if v is not None))
        nodes = [made_by(v, *_ARITHMETIC) for v in level]
        level = [operand for node in nodes if node is not None for operand in node.inputs]
    return list(found)


def _combine(operator: str, parts: list[PolynomialTerms], one: Powers) -> PolynomialTerms | None:
    a = parts[0]
    if operator == "Neg":
        return _scaled(a, -1.0)
    b = parts[1]
    constant = b.terms.get(one) if b.terms.keys() == {one} else None
    if operator == "Add":
        return _sum(a, b)
    if operator == "Sub":
        return _sum(a, _scaled(b, -1.0))
    if operator == "Mul":
        return _product(a, b)
    if operator == "Div":
        return _scaled(a, 1 / constant) if constant else None
    if operator == "Pow" and constant in (1.0, 2.0, 3.0):
        power = PolynomialTerms({one: 1.0})
        for _ in range(int(constant)):
            power = _product(power, a)
        return power
    return None


def _scaled(a: PolynomialTerms, number: float) -> PolynomialTerms:
    return PolynomialTerms({powers: c * number for powers, c in a.terms.items()})


def _sum(a: PolynomialTerms, b: PolynomialTerms) -> PolynomialTerms:
    terms = dict(a.terms)
    for powers, c in b.terms.items():
        terms[powers] = terms.get(powers, 0.0) + c
    return PolynomialTerms(terms)


def _product(a: PolynomialTerms, b: PolynomialTerms) -> PolynomialTerms:
    terms: dict[Powers, float] = {}
    for left, c in a.terms.items():
        for right, d in b.terms.items():
            powers = tuple(m + n for m, n in zip(left, right))
            terms[powers] = terms.get(powers, 0.0) + c * d
    return PolynomialTerms(terms)
