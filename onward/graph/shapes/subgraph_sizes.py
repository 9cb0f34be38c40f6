"""Infer sizes in and out of the bodies of If, Loop and Scan, from the sizes around them.

ONNX infers no shapes for values that a loop carries, because an iteration may change them. For the
cost of a run, those of the first iteration are a good estimate, and the number of iterations may be
known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from onward.graph.operators import LOOPS

TRIPS = "onward.trips"  # of a node's meta: how often its body runs, where that was computed

Sizes = list[int]
Shapes = Callable[[ir.Value], Sequence[int] | None]


def sizes(value: ir.Value | None) -> Sizes | None:
    """A value's shape, where every size is known."""
    if value is None or value.shape is None:
        return None
    found = [size for size in value.shape if isinstance(size, int) and size >= 0]
    return found if len(found) == len(value.shape) else None


def set_body_sizes(node: ir.Node, body: ir.Graph) -> None:
    """Give a body's inputs the types and sizes of the first iteration."""
    if node.op_type == "Loop":
        for value in body.inputs[:2]:  # the iteration number and the condition
            _fill(value, [])
        for inner, outer in zip(body.inputs[2:], node.inputs[2:]):
            _give(inner, outer, sizes(outer))
    elif node.op_type == "Scan":
        states = len(node.inputs) - _scanned(node)
        for place, (inner, outer) in enumerate(zip(body.inputs, node.inputs)):
            found = sizes(outer)
            if place >= states and found:
                del found[_axes(node, "scan_input_axes", place - states, len(found))]
            _give(inner, outer, found)


def set_output_sizes(node: ir.Node, inner: Sequence[ir.Graph], trips: int | None) -> None:
    """Give a node's outputs the sizes that its bodies return."""
    for place, value in enumerate(node.outputs):
        found = _returned(node, inner, place, trips)
        if found is not None:
            _fill(value, found)


def changes_sizes(node: ir.Node, inner: Sequence[ir.Graph]) -> bool:
    """Whether a loop's iteration changes carried sizes, so that each one costs differently."""
    if node.op_type != "Loop":
        return False
    (body,) = inner
    pairs = zip(body.inputs[2:], body.outputs[1:])
    return any(
        sizes(given) != sizes(left)
        for given, left in pairs
        if sizes(given) is not None and sizes(left) is not None
    )


def _returned(
    node: ir.Node, inner: Sequence[ir.Graph], place: int, trips: int | None
) -> Sizes | None:
    if node.op_type == "If":
        first, *others = [sizes(body.outputs[place]) for body in inner]
        return first if all(other == first for other in others) else None
    if node.op_type not in LOOPS:
        return None
    (body,) = inner
    if node.op_type == "Loop":
        states, offset = len(body.inputs) - 2, 1
    else:
        states, offset = len(node.inputs) - _scanned(node), 0
    found = sizes(body.outputs[place + offset])
    if found is None or place < states:
        return None if found is None or changes_sizes(node, inner) else found
    if trips is None:
        return None
    axis = _axes(node, "scan_output_axes", place - states, len(found) + 1)
    return [*found[:axis], trips, *found[axis:]]


def scan_length(node: ir.Node, shapes: Shapes = sizes) -> int | None:
    """How often a Scan's body runs; `shapes` returns the sizes of a value."""
    first = node.inputs[len(node.inputs) - _scanned(node)]
    found = None if first is None else shapes(first)
    return found[_axes(node, "scan_input_axes", 0, len(found))] if found else None


def _scanned(node: ir.Node) -> int:
    return node.attributes.get_int("num_scan_inputs", 1)


def _axes(node: ir.Node, name: str, place: int, rank: int) -> int:
    axes = node.attributes.get_ints(name) or []
    return axes[place] % rank if place < len(axes) else 0


def _give(inner: ir.Value, outer: ir.Value | None, found: Sizes | None) -> None:
    if outer is not None and inner.type is None:
        inner.type = outer.type
    if found is not None:
        _fill(inner, found)


def _fill(value: ir.Value, found: Sizes) -> None:
    """Write sizes that are not known yet; a declared number of axes stays."""
    if sizes(value) is None and (value.shape is None or len(value.shape) == len(found)):
        value.shape = ir.Shape(found)
