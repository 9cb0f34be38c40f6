"""Cases of rules/control.py: bodies are written with builders of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

import onward
from tests.gradients.case import OPSET, Case, normal


def body(names: Sequence[tuple[str, Any, Sequence[Any]]], write: Callable[..., Any]) -> ir.Graph:
    """A subgraph: its inputs (name, type, shape), and what `write(op, *inputs)` returns."""
    op = onward.OpBuilder(opset=OPSET, name="body")
    inputs = [op.input(*each) for each in names]
    outputs = write(op, *inputs)
    for value in outputs if isinstance(outputs, tuple) else (outputs,):
        own = value.producer() is not None and value.producer().graph is op.graph
        op.graph.outputs.append(value if own else op.Identity(value))
    prefix(op.graph)
    return op.graph


_count = iter(range(10**9))


def prefix(graph: ir.Graph) -> None:
    """Names that no other graph has."""
    mark = f"body{next(_count)}"
    for value in list(graph.initializers.values()):
        value.name = f"{mark}/{value.name}"
    for value in graph.inputs:
        value.name = f"{mark}/{value.name}"
    for node in graph:
        for value in node.outputs:
            value.name = f"{mark}/{value.name}"


def held(op: Any, kind: str, inputs: Sequence[Any], likes: Sequence[Any], **attributes: Any) -> Any:
    """A node with subgraphs; its outputs have these types and shapes."""
    node = ir.node(kind, inputs, attributes, num_outputs=len(likes))
    for number, (output, (dtype, shape)) in enumerate(zip(node.outputs, likes)):
        output.name = op.name(f"{kind}{number}")
        output.type, output.shape = ir.TensorType(dtype), ir.Shape(shape)
    op.graph.append(node)
    return tuple(node.outputs) if len(likes) > 1 else node.outputs[0]


def branches(op: Any, c: Any, x: Any, w: Any) -> Any:
    then = body([], lambda inner: inner.Mul(inner.Sin(x), w))
    other = body([], lambda inner: inner.Tanh(x))
    return held(op, "If", [c], [(x.dtype, x.shape)], then_branch=then, else_branch=other)


def passed_through(op: Any, c: Any, x: Any) -> Any:
    """A branch that gives a captured value as it is."""
    then, other = body([], lambda inner: x), body([], lambda inner: inner.Mul(x, x))
    return held(op, "If", [c], [(x.dtype, x.shape)], then_branch=then, else_branch=other)


def powers(trips: int, until: float | None = None) -> Callable[..., Any]:
    """v <- sin(v) w, trips times (or while the trip is below `until`); every v is scanned."""

    def write(op: Any, v: Any, w: Any) -> Any:
        def step(inner: Any, trip: Any, going: Any, state: Any) -> Any:
            new = inner.Mul(inner.Sin(state), w)
            more = inner.Identity(going) if until is None else inner.Less(trip, np.int64(until))
            return more, new, inner.Mul(new, state)

        kinds = [("trip", "int64", ()), ("going", "bool", ()), ("state", v.dtype, v.shape)]
        loop = body(kinds, step)
        likes = [(v.dtype, v.shape), (v.dtype, [None, *v.shape])]
        inputs = [op.constant(np.array(trips)), op.constant(np.array(True)), v]
        return held(op, "Loop", inputs, likes, body=loop)

    return write


def nested(op: Any, v: Any, w: Any) -> Any:
    """A loop whose body holds a choice that captures from both scopes."""

    def step(inner: Any, trip: Any, going: Any, state: Any) -> Any:
        even = inner.Equal(inner.Mod(trip, np.int64(2)), np.int64(0))
        then = body([], lambda deep: deep.Mul(state, w))
        other = body([], lambda deep: deep.Tanh(deep.Add(state, w)))
        new = held(inner, "If", [even], [(v.dtype, v.shape)], then_branch=then, else_branch=other)
        return inner.Identity(going), new

    kinds = [("trip", "int64", ()), ("going", "bool", ()), ("state", v.dtype, v.shape)]
    inputs = [op.constant(np.array(3)), op.constant(np.array(True)), v]
    return held(op, "Loop", inputs, [(v.dtype, v.shape)], body=body(kinds, step))


def scanned(**attributes: Any) -> Callable[..., Any]:
    """s <- tanh(s + x w), over the rows of x; y is s again."""

    def write(op: Any, s: Any, x: Any, w: Any) -> Any:
        def step(inner: Any, state: Any, row: Any) -> Any:
            new = inner.Tanh(inner.Add(state, inner.Mul(row, w)))
            return new, inner.Mul(new, row)

        graph = body([("state", s.dtype, s.shape), ("row", x.dtype, s.shape)], step)
        likes = [(s.dtype, s.shape), (x.dtype, x.shape)]
        return held(op, "Scan", [s, x], likes, body=graph, num_scan_inputs=1, **attributes)

    return write


YES, NO = np.array(True), np.array(False)
VW = {"v": normal(2, 3), "w": normal(2, 3, seed=1)}
SXW = {"s": normal(3), "x": normal(4, 3), "w": normal(3, seed=1)}
BACK = {"scan_input_directions": [1], "scan_output_directions": [1]}
ACROSS = {"scan_input_axes": [1], "scan_output_axes": [1]}

CASES = [
    Case("If", branches, {"c": YES, "x": normal(2, 3), "w": normal(3)}, "then"),
    Case("If", branches, {"c": NO, "x": normal(2, 3), "w": normal(3)}, "else"),
    Case("If", passed_through, {"c": YES, "x": normal(2, 3)}, "a captured value passed through"),
    Case("Loop", powers(3), VW),
    Case("Loop", powers(1), VW, "one trip"),
    Case("Loop", powers(10, until=2), VW, "ended by its condition"),
    Case("Loop", nested, VW, "a choice inside"),
    Case("Scan", scanned(), SXW),
    Case("Scan", scanned(**BACK), SXW, "backwards"),
    Case("Scan", scanned(**ACROSS), {**SXW, "x": normal(3, 4)}, "along another axis"),
]
