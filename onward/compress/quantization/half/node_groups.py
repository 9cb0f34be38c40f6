"""Nodes that are undone together: they share a weight, or read each other's values."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onward.graph.scopes import graphs_of


def connected_nodes(
    model: ir.Model, chosen: Collection[str], *, by_values: bool
) -> list[list[str]]:
    """The chosen nodes in groups that are connected, in the order of the graph.

    Args:
        model: the model
        chosen: the names of nodes
        by_values: whether a value connects the node that makes it with those that read it;
            otherwise only an initializer that several nodes read does
    """
    group_of: dict[str, list[str]] = {}
    for graph in graphs_of(model):
        for node in graph:
            if node.name in chosen:
                group_of[str(node.name)] = [str(node.name)]
        for value in _connecting(graph, by_values):
            nodes = [node for node, _ in value.uses()]
            producer = value.producer()
            nodes += [producer] if producer is not None else []
            _join([str(node.name) for node in nodes if node.name in chosen], group_of)
    order = {name: place for place, name in enumerate(group_of)}
    groups = {id(group): group for group in group_of.values()}
    return [sorted(group, key=order.__getitem__) for group in groups.values()]


def _connecting(graph: ir.Graph, by_values: bool) -> list[ir.Value]:
    if not by_values:
        return list(graph.initializers.values())
    return [value for node in graph for value in node.outputs]


def _join(names: list[str], group_of: dict[str, list[str]]) -> None:
    known = [name for name in dict.fromkeys(names) if name in group_of]
    for name in known[1:]:
        first, other = group_of[known[0]], group_of[name]
        if first is not other:
            first.extend(other)
            group_of.update(dict.fromkeys(other, first))
