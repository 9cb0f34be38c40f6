"""Partition a graph among providers: maximal convex parts, in topological order.

A part is convex if no path leaves it and returns: only then can it run as one executable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onward.graph.scopes import reads

Choice = Callable[[ir.Node], int]  # the number of the provider that runs a node


@dataclass
class Part:
    """Nodes that one provider runs together."""

    provider: int
    nodes: list[ir.Node] = field(default_factory=list)
    needs: set[int] = field(default_factory=set)  # numbers of the parts whose outputs it reads


def partition(graph: ir.Graph, choose: Choice) -> list[Part]:
    """The graph's nodes in maximal convex parts, sorted so that each can run in turn."""
    parts: list[Part] = []
    part_of: dict[ir.Node, int] = {}
    for node in _needed(graph):
        provider = choose(node)
        sources = {part_of[n] for n in _producers(node, graph)}
        number = _joinable(parts, provider, sources)
        if number is None:
            number = len(parts)
            parts.append(Part(provider))
        parts[number].nodes.append(node)
        parts[number].needs |= sources - {number}
        part_of[node] = number
    return _in_order(parts)


def _needed(graph: ir.Graph) -> list[ir.Node]:
    """The nodes that the graph's outputs depend on, in order."""
    needed: set[ir.Node] = set()
    stack = [producer for v in graph.outputs if (producer := v.producer()) is not None]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(_producers(node, graph))
    return [node for node in graph if node in needed]


def _joinable(parts: Sequence[Part], provider: int, sources: set[int]) -> int | None:
    """The last part of this provider on which no other source depends; a node can join it."""
    for number in range(len(parts) - 1, -1, -1):
        if parts[number].provider == provider and not _reaches(parts, sources - {number}, number):
            return number
    return None


def _reaches(parts: Sequence[Part], starts: set[int], goal: int) -> bool:
    """Whether one of the parts needs `goal`, directly or through others."""
    seen, stack = set(starts), list(starts)
    while stack:
        number = stack.pop()
        if number == goal:
            return True
        fresh = parts[number].needs - seen
        seen |= fresh
        stack.extend(fresh)
    return False


def _in_order(parts: Sequence[Part]) -> list[Part]:
    """Every part after the parts that it needs; `needs` renumbered to the new order."""
    order: list[int] = []
    placed: set[int] = set()
    waiting = list(range(len(parts)))
    while waiting:
        ready = [number for number in waiting if parts[number].needs <= placed]
        order.extend(ready)
        placed.update(ready)
        waiting = [number for number in waiting if number not in placed]
    place = {number: index for index, number in enumerate(order)}
    return [
        Part(parts[n].provider, parts[n].nodes, {place[m] for m in parts[n].needs}) for n in order
    ]


def _producers(node: ir.Node, graph: ir.Graph) -> list[ir.Node]:
    """The nodes of `graph` whose results a node reads, its subgraphs' captures included."""
    return [p for value in _values_read_from(node, graph) if (p := value.producer()) is not None]


def _values_read_from(node: ir.Node, graph: ir.Graph) -> list[ir.Value]:
    """The values of `graph` that a node reads."""
    return [value for value in reads(node) if value.graph is graph]


def extract(graph: ir.Graph, parts: Sequence[Part]) -> list[ir.Model]:
    """Each part as a model: its inputs are what it reads, its outputs what other parts read."""
    readers: dict[ir.Value, set[int]] = {value: {-1} for value in graph.outputs}
    for number, part in enumerate(parts):
        for node in part.nodes:
            for value in _values_read_from(node, graph):
                readers.setdefault(value, set()).add(number)
    return [_extract(graph, part, number, readers) for number, part in enumerate(parts)]


def _extract(
    graph: ir.Graph, part: Part, number: int, readers: dict[ir.Value, set[int]]
) -> ir.Model:
    inside = set(part.nodes)
    outputs = [v for node in part.nodes for v in node.outputs if readers.get(v, set()) - {number}]
    inputs = dict.fromkeys(
        value
        for node in part.nodes
        for value in _values_read_from(node, graph)
        if value.producer() not in inside and (value.is_graph_input() or not value.is_initializer())
    )
    piece = ir.convenience.extract(graph, list(inputs), outputs)
    piece.opset_imports.update(graph.opset_imports)
    return ir.Model(piece, ir_version=10)
