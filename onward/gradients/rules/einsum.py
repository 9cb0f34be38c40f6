"""Gradients of Einsum: an Einsum of dy and the other operands."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps, rank
from onward.gradients.rule import GradientTable
from onward.gradients.rules.linear import equal_places
from onward.graph.einsum_letters import expand_equation
from onward.passes.value_facts import attribute, dims

gradient = GradientTable()


@gradient("Einsum")
def einsum(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y = einsum("A,B->Y", a, b): da = einsum("Y,B->A", dy, b), and so for b

    An axis that only a has (it was summed) is broadcast; a diagonal is put back on the diagonal.
    """
    operands = [x for x in node.inputs if x is not None]
    terms, result = expand_equation(attribute(node, "equation"), [rank(x) for x in operands])
    gradients = []
    for i, (x, term) in enumerate(zip(operands, terms)):
        others = [j for j in range(len(operands)) if j != i]
        values, labels = [dy, *(operands[j] for j in others)], [result, *(terms[j] for j in others)]
        gradients.append(_onto(op, x, term, values, labels))
    return gradients


def _onto(
    op: GradientOps, x: ir.Value, term: str, values: list[ir.Value], labels: list[str]
) -> ir.Value:
    """The product of `values` on the axes of x, whose letters are `term`."""
    unique = "".join(dict.fromkeys(term))
    known = "".join(letter for letter in unique if any(letter in each for each in labels))
    g = values[0]
    if len(values) > 1 or labels[0] != known:
        g = op.Einsum(*values, equation=",".join(labels) + "->" + known)
    if known != unique:
        g = op.Unsqueeze(g, [i for i, letter in enumerate(unique) if letter not in known])
    axes = [term.index(letter) for letter in unique]
    sizes = [op.size(x, axis) for axis in axes]
    if not _are_given(x, term, values, labels):
        g = op.Expand(g, op.shape(*sizes)) if sizes else g
    if unique != term:
        g = _on_diagonals(op, x, term, unique, g)
    return op.sum_to(g, x)


def _are_given(x: ir.Value, term: str, values: list[ir.Value], labels: list[str]) -> bool:
    """Whether each axis of x is known to have its size in the values."""
    sizes: dict[str, set[Any]] = {}
    for value, label in zip(values, labels):
        shape = dims(value) or [None] * len(label)
        for letter, size in zip(label, shape):
            sizes.setdefault(letter, set()).add(size)
    shape = dims(x) or [None] * len(term)
    return all(
        (size is not None and size in sizes.get(letter, ())) or (size == 1 and letter in sizes)
        for letter, size in zip(term, shape)
    )


def _on_diagonals(op: GradientOps, x: ir.Value, term: str, unique: str, g: ir.Value) -> ir.Value:
    """g where the axes of one letter have one index, 0 elsewhere: "i" back on "ii"."""
    later = [axis for axis, letter in enumerate(term) if letter in term[:axis]]
    g = op.Unsqueeze(g, later)
    for axis in later:
        first = term.index(term[axis])
        same = equal_places(op, op.size(x, axis))
        rest = [a for a in range(len(term)) if a not in (first, axis)]
        g = op.Where(op.Unsqueeze(same, rest) if rest else same, g, 0.0)
    return g
