"""ForwardBackward: which values of a train graph the forward pass makes and the backward reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from onward.graph.operators import SHAPE_ONLY, VIEWS, is_random, is_random_contrib
from onward.graph.scopes import ancestors, bodies, origin, reads
from onward.passes.memory_functions import is_await, is_barrier, puts_away


@dataclass(frozen=True)
class ForwardBackward:
    """The nodes of a train graph in two parts, each in the graph's order."""

    nodes: list[ir.Node] = field(repr=False)  # all of them
    forward: list[ir.Node] = field(repr=False)
    backward: set[ir.Node] = field(repr=False)
    place: dict[ir.Value, int] = field(repr=False)  # of a forward value: its node's number
    waiting: list[ir.Value]  # forward values that the backward reads
    fixed: set[ir.Value] = field(repr=False)  # of them, those that are never replaced by copies

    def is_dropped(self, value: ir.Value, saved: Collection[ir.Value]) -> bool:
        """Whether the backward reads a copy of a value, if these storages are saved."""
        storage = storage_of(value)
        if storage in saved or storage not in self.place:
            return False
        return not (storage.is_graph_output() or value.is_graph_output())


def divide_train_graph(
    graph: ir.Graph, outputs: Collection[str], fixed: Collection[str] = ()
) -> ForwardBackward:
    """Divide a train graph; `outputs` are those of the forward pass.

    `fixed` names values that are never replaced by copies.
    """
    wanted = [value for value in graph.outputs if value.name in outputs]
    needed = ancestors(graph, wanted)
    nodes = list(graph)
    forward = [
        node
        for node in nodes
        if puts_away(node)
        or any(v in needed for v in node.outputs)
        or (is_shape(node) and node.inputs[0] in needed)
    ]
    backward = set(nodes).difference(forward)
    place = {value: i for i, node in enumerate(forward) for value in node.outputs}
    waiting: dict[ir.Value, None] = {}
    kept = {value for value in place if value.name in fixed}
    for node in nodes:
        if node not in backward:
            continue
        read = [value for value in sources(node) if value in place]
        waiting.update(dict.fromkeys(read))
        if bodies(node):  # what a subgraph reads is not replaced
            kept.update(read)
    return ForwardBackward(nodes, forward, backward, place, list(waiting), kept)


def hoist_shapes(graph: ir.Graph, parts: ForwardBackward) -> None:
    """Let nodes that read shapes of forward values run right after these values are made.

    Otherwise a value would wait for the backward pass for the sake of its shape.
    """
    order = {node: i for i, node in enumerate(parts.nodes)}
    for node in parts.forward:
        value = node.inputs[0] if is_shape(node) else None
        maker = None if value is None else value.producer()
        if maker is None or maker.graph is not graph:
            continue
        if order[node] - order[maker] > 1:
            graph.remove(node)
            graph.insert_after(maker, node)


def is_shape(node: ir.Node) -> bool:
    """Whether a node reads no more of its input than the shape."""
    return node.domain == "" and node.op_type in SHAPE_ONLY


def can_repeat(node: ir.Node) -> bool:
    """Whether a node may be computed again with the same results."""
    if bodies(node) or is_random(node) or is_random_contrib(node):
        return False
    return all(isinstance(v.type, ir.TensorType) for v in node.outputs if v.name)


def sources(node: ir.Node) -> list[ir.Value]:
    """The values that a node reads, without constants."""
    found = reads(node)[:1] if is_barrier(node) else reads(node)  # a token is not read
    return [value for value in found if value.const_value is None]


def is_reshape(node: ir.Node) -> bool:
    """Whether a node's result is its input's memory on every engine."""
    return is_barrier(node) or is_await(node) or (node.domain == "" and node.op_type in VIEWS)


def storage_of(value: ir.Value) -> ir.Value:
    """The value whose memory this one shares: views have none of their own."""
    return origin(value, is_reshape)


def storages(values: Iterable[ir.Value]) -> set[ir.Value]:
    """The values whose memory these occupy, without the graph's inputs and constants."""
    found = {storage_of(value) for value in values}
    return {value for value in found if value.producer() is not None}
