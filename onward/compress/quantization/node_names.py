"""Names of nodes for plans: every node has one of its own; and no exporters' traces."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.scopes import graphs_of


def name_nodes(model: ir.Model) -> None:
    """Give each node of the model a name that no other node has; good names stay."""
    taken: set[str] = set()
    for node in _nodes(model):
        wish = node.name or f"{node.op_type}_{node.outputs[0].name}"
        name, count = wish, 0
        while name in taken:
            count += 1
            name = f"{wish}_{count}"
        node.name = name
        taken.add(name)


def drop_traces(model: ir.Model) -> None:
    """Remove what exporters record of each node's origin: megabytes of stack traces."""
    for node in _nodes(model):
        for key in [key for key in node.metadata_props if key.startswith("pkg.torch")]:
            del node.metadata_props[key]


def _nodes(model: ir.Model) -> list[ir.Node]:
    return [node for graph in graphs_of(model) for node in graph]
