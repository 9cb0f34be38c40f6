"""Rules that compute an Einsum of several operands two at a time, in the order of the least work.

    einsum("btei,eid,bte->btd", h, w, s) = einsum("btei,eid->btd", h * s, w)

Engines go from left to right, and may sum last: here they would keep a tensor of b t e i d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.passes.einsum_letters import letters
from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import attribute, dims

rule = Rules()

_ASSUMED = 64  # a dynamic size
_MOST_TRIED = 6  # operands: of more, not every order is tried


@rule("Einsum")
def two_at_a_time(op: Ops, node: ir.Node) -> Replacement:
    """einsum(a, b, c) = einsum(einsum(a, b), c); without a sum, a product is a Mul."""
    values = [value for value in node.inputs if value is not None]
    shapes = [dims(value) for value in values]
    if len(values) < 2 or any(shape is None for shape in shapes):
        return None
    known = [shape for shape in shapes if shape is not None]
    terms, result = letters(attribute(node, "equation"), [len(shape) for shape in known])
    if any(len(set(term)) < len(term) for term in (*terms, result)):
        return None  # a diagonal
    if len(values) == 2:
        return _multiplied(op, values, terms, result)
    waiting = list(zip(values, terms))
    for step in _order(terms, result, known):
        taken = [waiting[i] for i in step]
        waiting = [each for i, each in enumerate(waiting) if i not in step]
        while len(taken) > 1:  # no order is better: from left to right
            (a, left), (b, right), *later = taken
            needed = result + "".join(term for _, term in (*waiting, *later))
            made = "".join(dict.fromkeys(c for c in left + right if c in needed))
            made = made if waiting or later else result
            taken = [(_product(op, [a, b], [left, right], made), made), *later]
        waiting += taken
    return waiting[0][0]


def _order(terms: list[str], result: str, shapes: Sequence[Sequence[Any]]) -> list[list[int]]:
    """Which operands to multiply in each step; a product becomes the last operand."""
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes):
        for letter, size in zip(term, shape):
            known = size if isinstance(size, int) else _ASSUMED
            sizes[letter] = max(sizes.get(letter, 1), known, 1)
    zero = np.zeros((), np.int8)
    examples = [np.broadcast_to(zero, [sizes[letter] for letter in term]) for term in terms]
    how = "optimal" if len(terms) <= _MOST_TRIED else "greedy"
    path, _ = np.einsum_path(f"{','.join(terms)}->{result}", *examples, optimize=how)
    return [sorted(step) for step in path[1:]]


def _product(op: Ops, values: list[ir.Value], terms: list[str], result: str) -> ir.Value:
    found = _multiplied(op, values, terms, result)
    if found is not None:
        return found
    return op.Einsum(*values, equation=f"{','.join(terms)}->{result}")


def _multiplied(op: Ops, values: list[ir.Value], terms: list[str], result: str) -> ir.Value | None:
    """The product of two operands by Mul, if no axis is summed."""
    if {*result} != {*"".join(terms)}:
        return None
    a, b = (_aligned(op, value, term, result) for value, term in zip(values, terms))
    return op.Mul(a, b)


def _aligned(op: Ops, value: ir.Value, term: str, result: str) -> ir.Value:
    """A value with its axes in the order of the result, and axes of size 1 for the others."""
    order = sorted(range(len(term)), key=lambda i: result.index(term[i]))
    if order != list(range(len(term))):
        value = op.Transpose(value, perm=order)
    missing = [place for place, letter in enumerate(result) if letter not in term]
    leading = next((n for n, place in enumerate(missing) if place != n), len(missing))
    return op.Unsqueeze(value, missing) if missing[leading:] else value
