"""Rules that compute an Einsum of several operands two at a time, in the order of the least work.

    einsum("btei,eid,bte->btd", h, w, s) = einsum("btei,eid->btd", g, w)
    g = einsum("btei,bte->btei", h, s)

Engines go from left to right, and may sum last: here they would keep a tensor of b t e i d.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.graph.einsum_letters import expand_equation
from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import attribute, dims

rule = Rules()
Operand = tuple[ir.Value, str]  # with the letters of its axes

ASSUMED = 64  # a dynamic size
_MOST_TRIED = 6  # operands: of more, not every order is tried


@rule("Einsum")
def contract_pairs(op: Ops, node: ir.Node) -> Replacement:
    """einsum(a, b, c) = einsum(einsum(a, b), c)"""
    found = plain_equation(node) if len(node.inputs) > 2 else None
    if found is None:
        return None
    waiting, result = found
    for step in _order(waiting, result):
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


def plain_equation(node: ir.Node) -> tuple[list[Operand], str] | None:
    """The operands and the letters of the result; None if ranks are unknown, or for a diagonal."""
    values = [value for value in node.inputs if value is not None and value.shape is not None]
    if len(values) < len(node.inputs):
        return None
    ranks = [len(dims(value) or ()) for value in values]
    terms, result = expand_equation(attribute(node, "equation"), ranks)
    fits = [len(term) for term in terms] == ranks and {*result} <= {*"".join(terms)}
    if not fits or any(len({*term}) < len(term) for term in (*terms, result)):
        return None
    return list(zip(values, terms)), result


def _order(operands: Sequence[Operand], result: str) -> list[list[int]]:
    """Which operands to multiply in each step; a product becomes the last operand."""
    sizes: dict[str, int] = {}
    terms = [term for _, term in operands]
    for value, term in operands:
        for letter, size in zip(term, dims(value) or ()):
            known = size if isinstance(size, int) else ASSUMED
            sizes[letter] = max(sizes.get(letter, 1), known, 1)
    zero = np.zeros((), np.int8)
    examples = [np.broadcast_to(zero, [sizes[letter] for letter in term]) for term in terms]
    how = "optimal" if len(terms) <= _MOST_TRIED else "greedy"
    path, _ = np.einsum_path(f"{','.join(terms)}->{result}", *examples, optimize=how)
    return [sorted(step) for step in path[1:]]
