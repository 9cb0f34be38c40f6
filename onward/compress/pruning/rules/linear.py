"""Axes of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.compress.pruning.axes import Axes, known_sizes, rank
from onward.compress.pruning.rules.elementwise import broadcast
from onward.compress.pruning.rules.reading import given
from onward.graph.einsum_letters import expand_equation
from onward.graph.operator_table import OpTable

LINEAR = OpTable()


@LINEAR("MatMul")
def _matmul(node: ir.Node, axes: Axes) -> None:
    """y[..., i, j] = sum_k a[..., i, k] b[..., k, j]"""
    a, b, y = node.inputs[0], node.inputs[1], node.outputs[0]
    n, m, k = rank(a), rank(b), rank(y)
    if a is None or b is None or not n or not m or k is None:
        return
    axes.tie((a, n - 1), (b, max(m - 2, 0)))
    if n > 1:
        axes.tie((a, n - 2), (y, k - (2 if m > 1 else 1)))
    if m > 1:
        axes.tie((b, m - 1), (y, k - 1))
    for x, own in ((a, n), (b, m)):
        sizes, wanted = known_sizes(x) or (), known_sizes(y) or ()
        for place in range(own - 2):
            other = k - own + place + (0 if n > 1 and m > 1 else 1)
            if sizes[place] != 1 or wanted[other] == 1:
                axes.tie((x, place), (y, other))


@LINEAR("Gemm")
def _gemm(node: ir.Node, axes: Axes) -> None:
    """y = a b + c, each matrix transposed if an attribute says so"""
    a, b, y = node.inputs[0], node.inputs[1], node.outputs[0]
    if a is None or b is None:
        return
    left, right = node.attributes.get_int("transA", 0), node.attributes.get_int("transB", 0)
    axes.tie((a, 0 if left else 1), (b, 1 if right else 0))
    axes.tie((a, 1 if left else 0), (y, 0))
    axes.tie((b, 0 if right else 1), (y, 1))
    if (c := given(node, 2)) is not None:
        broadcast(axes, c, y)


@LINEAR("Einsum")
def _einsum(node: ir.Node, axes: Axes) -> None:
    """Axes with the same letter are one; with an ellipsis, or without '->', all are pinned.

    A letter that is summed and that one operand alone has is pinned, too: no weight reads it.
    """
    equation = node.attributes.get_string("equation", "")
    if "..." in equation or "->" not in equation:
        return
    operands, result = expand_equation(equation, [rank(x) or 0 for x in node.inputs])
    terms, values = [*operands, result], [*node.inputs, node.outputs[0]]
    if any(v is None or rank(v) != len(t) for v, t in zip(values, terms, strict=True)):
        return
    places: dict[str, list[tuple[ir.Value, int]]] = {}
    for value, term in zip(values, terms, strict=True):
        for place, letter in enumerate(term):
            assert value is not None
            places.setdefault(letter, []).append((value, place))
    for found in places.values():
        _tie_letter(axes, found)


def _tie_letter(axes: Axes, found: Sequence[tuple[ir.Value, int]]) -> None:
    axis, *others = found
    for other in others:
        axes.tie(axis, other)
    is_alone = len({value for value, _ in found}) == 1
    if is_alone or len({axes.size(each) for each in found}) > 1:
        axes.pin(axis)  # summed in one operand only, or broadcast
