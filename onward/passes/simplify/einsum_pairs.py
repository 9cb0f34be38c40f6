"""Rules that compute an Einsum of several operands two at a time, in the order of the least work.

    einsum("btei,eid,bte->btd", h, w, s) = einsum("btei,eid->btd", g, w)
    g = einsum("btei,bte->btei", h, s)

Engines go from left to right, and may sum last: here they would keep a tensor of b t e i d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.einsum_letters import expand_equation
from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import attribute, dims

rule = Rules()
product_rule = Rules()  # after mixed precision, which computes an Einsum in 16 bits

_ASSUMED = 64  # a dynamic size
_MOST_TRIED = 6  # operands: of more, not every order is tried


@rule("Einsum")
def contract_pairs(op: Ops, node: ir.Node) -> Replacement:
    """einsum(a, b, c) = einsum(einsum(a, b), c)"""
    values = [value for value in node.inputs if value is not None]
    shapes = [dims(value) for value in values]
    if len(values) < 3 or any(shape is None for shape in shapes):
        return None
    known = [shape for shape in shapes if shape is not None]
    terms, result = expand_equation(attribute(node, "equation"), [len(shape) for shape in known])
    if not _is_plain(terms, result, known):
        return None
    waiting = list(zip(values, terms))
    for step in _order(terms, result, known):
        taken = [waiting[i] for i in step]
        waiting = [each for i, each in enumerate(waiting) if i not in step]
        while len(taken) > 1:  # no order is better: from left to right
            (a, left), (b, right), *later = taken
            needed = result + "".join(term for _, term in (*waiting, *later))
            made = "".join(dict.fromkeys(c for c in left + right if c in needed))
            made = made if waiting or later else result
            product = op.Einsum(a, b, equation=f"{left},{right}->{made}")
            taken = [(product, made), *later]
        waiting += taken
    return waiting[0][0]


@product_rule("Einsum")
def product_without_sum(op: Ops, node: ir.Node) -> Replacement:
    """einsum("abc,ab->abc", x, y) = x * unsqueeze(y)"""
    if len(node.inputs) != 2:
        return None
    a, b = node.inputs
    shapes = [dims(a), dims(b)]
    if a is None or b is None or shapes[0] is None or shapes[1] is None:
        return None
    known = [shape for shape in shapes if shape is not None]
    terms, result = expand_equation(attribute(node, "equation"), [len(shape) for shape in known])
    if not _is_plain(terms, result, known) or {*result} != {*"".join(terms)}:
        return None
    return op.Mul(_aligned(op, a, terms[0], result), _aligned(op, b, terms[1], result))


def _is_plain(terms: list[str], result: str, shapes: Sequence[Sequence[Any]]) -> bool:
    """Whether each operand has its axes, and none of them is a diagonal."""
    fits = len(terms) == len(shapes) and all(len(t) == len(s) for t, s in zip(terms, shapes))
    is_known = {*result} <= {*"".join(terms)}
    return fits and is_known and all(len({*term}) == len(term) for term in (*terms, result))


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


def _aligned(op: Ops, value: ir.Value, term: str, result: str) -> ir.Value:
    """A value with its axes in the order of the result, and axes of size 1 for the others."""
    order = sorted(range(len(term)), key=lambda i: result.index(term[i]))
    if order != list(range(len(term))):
        value = op.Transpose(value, perm=order)
    missing = [place for place, letter in enumerate(result) if letter not in term]
    leading = next((n for n, place in enumerate(missing) if place != n), len(missing))
    return op.Unsqueeze(value, missing) if missing[leading:] else value
