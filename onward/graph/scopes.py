"""Walk graphs with their subgraphs, and find the values that nodes read, captured ones included."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import onnx_ir as ir

COMPOSITES = (
    "onward"  # the domain of calls that an engine may run as one kernel (passes/composites.py)
)


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The subgraphs of a node."""
    attributes = node.attributes.data  # the plain dict is faster: passes call this for every node
    if not attributes:
        return []
    return [a.as_graph() for a in attributes.values() if a.type is ir.AttributeType.GRAPH]


def walk(graph: ir.Graph) -> Iterator[ir.Node]:
    """Every node of a graph and its subgraphs, each before those inside it."""
    for node in graph:
        yield node
        for attribute in node.attributes.data.values():  # as in bodies(), without a call for each
            if attribute.type is ir.AttributeType.GRAPH:
                yield from walk(attribute.as_graph())


def stored_tensors(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """Every weight of the graphs by name: initializers, and the values of Constant nodes."""
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield name, value.const_value
    for node in walk(model.graph):
        attribute = node.attributes.get("value") if node.op_type == "Constant" else None
        if attribute is not None and attribute.type == ir.AttributeType.TENSOR:
            yield str(node.outputs[0].name), attribute.as_tensor()


def graphs_of(model: ir.Model) -> list[ir.Graph]:
    """The model's graph and every subgraph."""
    return [model.graph, *(body for node in walk(model.graph) for body in bodies(node))]


def reads(node: ir.Node) -> list[ir.Value]:
    """Every value that a node reads, directly or anywhere inside its subgraphs."""
    found = dict.fromkeys(value for value in node.inputs if value is not None)
    for body in bodies(node):
        for inner in body:
            found.update(dict.fromkeys(reads(inner)))
        found.update(dict.fromkeys(body.outputs))
    return list(found)


def ancestors(graph: ir.Graph, values: Iterable[ir.Value]) -> set[ir.Value]:
    """These values and all values that they are computed from."""
    needed = set(values)
    for node in reversed(graph):
        if any(value in needed for value in node.outputs):
            needed.update(reads(node))
    return needed


def origin(value: ir.Value, passes: Callable[[ir.Node], bool]) -> ir.Value:
    """The value from which this one comes through first inputs of nodes that pass."""
    while (node := value.producer()) is not None and node.inputs and passes(node):
        given = node.inputs[0]
        if given is None:
            break
        value = given
    return value


def standard(operators: Collection[str]) -> Callable[[ir.Node], bool]:
    """Whether a node is one of these standard operators."""
    return lambda node: not node.domain and node.op_type in operators


def last_uses(graph: ir.Graph) -> dict[ir.Node, list[ir.Value]]:
    """For each node, the values of this graph that no later node reads."""
    last: dict[ir.Value, ir.Node] = {}
    for node in graph:
        last.update(dict.fromkeys((*node.outputs, *reads(node)), node))
    ours = {*graph.inputs, *(value for node in graph for value in node.outputs)}
    drops: dict[ir.Node, list[ir.Value]] = {}
    for value, node in last.items():
        if value.name and value in ours and value not in graph.outputs:
            drops.setdefault(node, []).append(value)
    return drops
