"""Gradients of control flow: a node with subgraphs, whose gradient has their gradients.

The backward subgraph runs the forward subgraph again, from the stacked carried values of every
iteration, and then its backward pass. Captured values are differentiated too: rules return a
mapping from values to gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.backward import Found, is_differentiable
from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable, absent
from onward.gradients.subgraph_copies import SubgraphCopy, captures

gradient = GradientTable()


@gradient("If")
@absent
def if_(op: GradientOps, node: ir.Node, *dys: ir.Value | None) -> Any:
    """dv = If(c) { dv of the then branch } { dv of the else branch }, for each captured v"""
    captured = captures(op, node)
    branches = {}
    for name in ("then_branch", "else_branch"):
        body = SubgraphCopy(op, node.attributes[name].as_graph())
        found = body.backward([*zip(body.outputs, dys)], captured)
        branches[name] = body.finish([found.get(v) or body.op.zeros_like(v) for v in captured])
    return dict(zip(captured, op.typed("If", node.inputs, branches, captured)))


@gradient("Loop")
@absent
def loop(op: GradientOps, node: ir.Node, *dys: ir.Value | None) -> Any:
    """The same trips from the last to the first: dv = (d body / dv)' dv, captured ones summed

    Carried values of constant shape are stacked. Others are collected in a sequence, by a second
    run of the loop. A carried sequence is recomputed by running the previous iterations again.
    """
    body = node.attributes["body"].as_graph()
    carried = list(node.inputs[2:])
    for given, outside in zip(body.inputs[2:], carried):
        if given.type is None and outside is not None:  # a subgraph may omit it
            given.type = outside.type
    tensors = [v for v in body.inputs[2:] if not isinstance(v.type, ir.SequenceType)]
    steady = [v for v in tensors if _keeps_shape(body, v)]
    inner = SubgraphCopy(op, body)  # before outputs are added to the forward subgraph
    replay = _Replay(op, node) if len(tensors) < len(carried) else None
    changing = [v for v in tensors if v not in steady]
    collected = _collected(op, node, body, changing) if changing else {}
    kept = {v: _stacked(op, node, body, v) for v in (body.inputs[0], *steady)}
    count = op.size(kept[body.inputs[0]], 0)
    captured = captures(op, node)
    floats = [i for i, v in enumerate(carried) if v is not None and is_differentiable(v)]
    inits = [_start(op, dys[i], node.outputs[i]) for i in floats]
    sums = [op.zeros_like(v) for v in captured]
    back = _loop_body(inner, body, kept | collected, replay, count, floats, list(dys), captured)
    last = op.constant(np.array(count)) if isinstance(count, int) else op.Squeeze(count, [0])
    likes = [*(_given(node, 2 + i) for i in floats), *captured]
    results = op.typed("Loop", [last, None, *inits, *sums], {"body": back}, likes)
    found = dict(zip(captured, results[len(floats) :]))
    for i, gradient_ in zip(floats, results):
        value = _given(node, 2 + i)
        found[value] = op.total([found[value], gradient_]) if value in found else gradient_
    return found


def _keeps_shape(body: ir.Graph, value: ir.Value) -> bool:
    """Whether a carried value is known to have the same shape in all iterations."""
    result = body.outputs[list(body.inputs).index(value) - 1]
    if value.shape is None or result.shape is None:
        return False
    return value.shape == result.shape and all(
        isinstance(size, int) or size.value is not None for size in value.shape
    )


def _collected(
    op: GradientOps, node: ir.Node, body: ir.Graph, values: Sequence[ir.Value]
) -> dict[ir.Value, ir.Value]:
    """The carried values of every iteration as sequences, by a second run of the loop."""
    copy = SubgraphCopy(op, body)
    carried = len(node.inputs) - 2
    places = [list(body.inputs).index(value) for value in values]
    graph = copy.forward(carried)
    write = op.inside(graph)
    empty = []
    for place, value in zip(places, values):
        assert value.dtype is not None
        empty.append(op.SequenceEmpty(dtype=int(value.dtype)))
        so_far = ir.val(op.name("trips"), type=ir.SequenceType(ir.TensorType(value.dtype)))
        graph.inputs.append(so_far)
        graph.outputs.append(write.SequenceInsert(so_far, graph.inputs[place]))
    results = op.typed(
        "Loop", [*node.inputs, *empty], {"body": graph}, [*node.outputs[:carried], *empty]
    )
    return dict(zip(values, results[carried:]))


def _element(op: GradientOps, every: ir.Value, trip: ir.Value) -> ir.Value:
    """The value in one iteration."""
    if isinstance(every.type, ir.SequenceType):
        return op.SequenceAt(every, trip)
    return op.Gather(every, trip, axis=0)


class _Replay:
    """Recomputes the first iterations of a Loop."""

    def __init__(self, op: GradientOps, node: ir.Node) -> None:
        self._node = node
        copy = SubgraphCopy(op, node.attributes["body"].as_graph())
        self._body = copy.forward(len(node.inputs) - 2)

    def before(self, op: GradientOps, trip: ir.Value) -> list[ir.Value]:
        """The carried values at the start of an iteration."""
        inputs = [trip, *self._node.inputs[1:]]
        likes = self._node.outputs[: len(inputs) - 2]
        return op.typed("Loop", inputs, {"body": self._body}, likes)


def _loop_body(
    inner: SubgraphCopy,
    body: ir.Graph,
    kept: Mapping[ir.Value, ir.Value],
    replay: _Replay | None,
    count: Any,
    floats: Sequence[int],
    dys: Sequence[ir.Value | None],
    captured: Sequence[ir.Value],
) -> ir.Graph:
    """One backward iteration: trip, condition, dv ..., sums ... -> condition, dv ..., sums ..."""
    trip = inner.input("trip", ir.DataType.INT64, ())
    going = inner.input("going", ir.DataType.BOOL, ())
    states = [inner.like(body.outputs[1 + i], body.inputs[2 + i]) for i in floats]
    sums = [inner.like(value, value) for value in captured]
    write = inner.op
    total = (
        np.array(count - 1) if isinstance(count, int) else write.Sub(write.Squeeze(count, [0]), 1)
    )
    at = write.Sub(total, trip)
    carried = len(body.inputs) - 2
    given = {value: _element(write, every, at) for value, every in kept.items()}
    if replay is not None:
        pairs = zip(body.inputs[2:], replay.before(write, at))
        given |= {value: found for value, found in pairs if value not in kept}
    inner.bind({**given, body.inputs[1]: write.constant(np.array(True))})
    seeds = [(inner.outputs[1 + i], state) for i, state in zip(floats, states)]
    for output, dy in zip(inner.outputs[1 + carried :], dys[carried:]):
        if dy is not None:
            seeds.append((output, write.Gather(dy, at, axis=0)))
    wanted = [inner.at(body.inputs[2 + i]) for i in floats]
    found = inner.backward(seeds, [*captured, *wanted])
    back = [found.get(w) or write.zeros_like(w) for w in wanted]
    added = [
        write.total([s, found[v]]) if v in found else write.Identity(s)
        for v, s in zip(captured, sums)
    ]
    return inner.finish([write.Identity(going), *back, *added])


@gradient("Scan")
@absent
def scan(op: GradientOps, node: ir.Node, *dys: ir.Value | None) -> Any:
    """A Scan in the other direction over the states that the forward met, its inputs and dys."""
    body = node.attributes["body"].as_graph()
    scanned = node.attributes["num_scan_inputs"].as_int()
    states = len(node.inputs) - scanned
    layout = _Layout(node, states, scanned)
    inner = SubgraphCopy(op, body)  # before outputs are added to the forward subgraph
    kept = [_kept_by_scan(op, node, body, i, layout) for i in range(states)]
    captured = captures(op, node)
    floats = [i for i in range(states) if is_differentiable(_given(node, i))]
    wanted = [i for i in range(states, len(node.inputs)) if is_differentiable(_given(node, i))]
    fed = [k for k, dy in enumerate(dys[states:]) if dy is not None]
    ds = [inner.like(body.outputs[i], body.inputs[i]) for i in floats]
    sums = [inner.like(value, value) for value in captured]
    given = {value: inner.like(value, value) for value in body.inputs}
    inner.bind(given)
    seeds = [(inner.outputs[i], d) for i, d in zip(floats, ds)]
    for k in fed:
        written = body.outputs[states + k]
        seeds.append((inner.outputs[states + k], inner.like(written, written)))
    targets = [inner.at(body.inputs[i]) for i in (*floats, *wanted)]
    found = inner.backward(seeds, [*captured, *targets])
    write = inner.op
    back = [found.get(t) or write.zeros_like(t) for t in targets]
    added = [
        write.total([s, found[v]]) if v in found else write.Identity(s)
        for v, s in zip(captured, sums)
    ]
    graph = inner.finish([*back[: len(floats)], *added, *back[len(floats) :]])
    starts = [_start(op, dys[i], node.outputs[i]) for i in floats]
    zeros = [op.zeros_like(value) for value in captured]
    feeds = [*starts, *zeros, *kept, *node.inputs[states:], *(dys[states + k] for k in fed)]
    likes = [*(_given(node, i) for i in floats), *captured, *(_given(node, i) for i in wanted)]
    attributes = layout.backward(graph, fed, [i - states for i in wanted])
    results = op.typed("Scan", feeds, attributes, likes)
    found_outside: Found = {}
    pairs = zip(
        [*(_given(node, i) for i in floats), *captured, *(_given(node, i) for i in wanted)], results
    )
    for value, result in pairs:
        known = found_outside.get(value)
        found_outside[value] = result if known is None else op.total([known, result])
    return found_outside


class _Layout:
    """The axes and directions of a Scan's inputs and outputs, and those of the backward Scan."""

    def __init__(self, node: ir.Node, states: int, scanned: int) -> None:
        outputs = len(node.outputs) - states
        self.inputs, self.states = scanned, states
        self.input_axes = _numbers(node, "scan_input_axes", scanned)
        self.input_directions = _numbers(node, "scan_input_directions", scanned)
        self.output_axes = _numbers(node, "scan_output_axes", outputs)
        self.output_directions = _numbers(node, "scan_output_directions", outputs)

    def backward(self, body: ir.Graph, fed: list[int], wanted: list[int]) -> dict[str, Any]:
        axes = [0] * self.states + self.input_axes + [self.output_axes[k] for k in fed]
        directions = [1] * self.states + [1 - each for each in self.input_directions]
        directions += [1 - self.output_directions[k] for k in fed]
        return {
            "body": body,
            "num_scan_inputs": self.states + self.inputs + len(fed),
            "scan_input_axes": axes,
            "scan_input_directions": directions,
            "scan_output_axes": [self.input_axes[k] for k in wanted],
            "scan_output_directions": [1 - self.input_directions[k] for k in wanted],
        }


def _numbers(node: ir.Node, name: str, count: int) -> list[int]:
    attribute = node.attributes.get(name)
    return list(attribute.as_ints()) if attribute is not None else [0] * count


def _given(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _start(op: GradientOps, dy: ir.Value | None, like: ir.Value) -> ir.Value:
    return dy if dy is not None else op.zeros_like(like)


def _stacked(op: GradientOps, node: ir.Node, body: ir.Graph, value: ir.Value) -> ir.Value:
    """A subgraph's input in every iteration, as one more output of the Loop."""
    copy = op.inside(body).Identity(value)
    body.outputs.append(copy)
    output = op.output(node, len(node.outputs))
    sizes = [None, *value.shape] if value.shape is not None else None
    output.type, output.shape = value.type, None if sizes is None else ir.Shape(sizes)
    return output


def _kept_by_scan(
    op: GradientOps, node: ir.Node, body: ir.Graph, index: int, layout: _Layout
) -> ir.Value:
    count = len(node.outputs) - layout.states + 1
    for name, numbers in (("axes", layout.output_axes), ("directions", layout.output_directions)):
        attribute = f"scan_output_{name}"
        padded = [*numbers, *[0] * (count - len(numbers))]
        node.attributes[attribute] = ir.AttrInt64s(attribute, padded)
    return _stacked(op, node, body, body.inputs[index])
