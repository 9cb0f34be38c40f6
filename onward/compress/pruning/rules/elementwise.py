"""Axes of elementwise operators, which broadcast."""

from __future__ import annotations

import onnx_ir as ir

from onward.compress.pruning.axes import Axes, known_sizes, rank
from onward.compress.pruning.rules.reading import MICROSOFT, given
from onward.graph.operator_table import OpTable
from onward.graph.operators import BROADCASTING, UNARY, VARIADIC

ELEMENTWISE = OpTable()


def broadcast(axes: Axes, x: ir.Value, y: ir.Value, skip: int = 0) -> None:
    """Tie the axes of x to those of y that it is broadcast to, from the right.

    `skip` leaves out that many of the last axes.
    """
    n, m = rank(x), rank(y)
    if n is None or m is None or n > m:
        for value in (x, y):
            for place in range(rank(value) or 0):
                axes.pin((value, place))
        return
    sizes, wanted = known_sizes(x) or (), known_sizes(y) or ()
    for place in range(n - skip):
        other = m - n + place
        if sizes[place] == 1 and wanted[other] != 1:
            continue  # repeated
        axes.tie((x, place), (y, other))


@ELEMENTWISE(*(BROADCASTING | VARIADIC | (UNARY - {"Clip"})), "BitShift", "Where")
@ELEMENTWISE("Gelu", "QuickGelu", "FastGelu", "BiasGelu", domain=MICROSOFT)
def _broadcast(node: ir.Node, axes: Axes) -> None:
    """y[i] = f(a[i], b[i], ...)"""
    y = node.outputs[0]
    for x in node.inputs:
        if x is not None:
            broadcast(axes, x, y)


@ELEMENTWISE("Clip")
def _clip(node: ir.Node, axes: Axes) -> None:
    if (x := given(node, 0)) is not None:
        broadcast(axes, x, node.outputs[0])


@ELEMENTWISE("Dropout")
def _dropout(node: ir.Node, axes: Axes) -> None:
    x = given(node, 0)
    for y in node.outputs:
        if x is not None and y.name:
            broadcast(axes, x, y)


@ELEMENTWISE("QuantizeLinear", "DequantizeLinear")
def _quantize(node: ir.Node, axes: Axes) -> None:
    """y = x / scale + zero point; scale and zero point are numbers, or vectors along an axis."""
    x, y = given(node, 0), node.outputs[0]
    ranks = {rank(each) for each in node.inputs[1:] if each is not None}
    if x is None or not ranks <= {0, 1}:
        return
    if node.attributes.get_int("block_size", 0):
        return
    broadcast(axes, x, y)
    axis = node.attributes.get_int("axis", 1)
    for each in node.inputs[1:]:
        if each is not None and known_sizes(each) not in ((), (1,)) and rank(x):
            axes.tie((each, 0), (x, axis % (rank(x) or 1)))
