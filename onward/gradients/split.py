"""Split a graph into models that run one after the other, such as forward and backward.

    forward, backward = split(model, [["loss", "logits"], ["w_grad", "x_grad"]])
    forward, of_inputs, of_weights = split(model, [["loss"], ["x_grad"], ["w_grad"]])

Each group names the values that one piece computes: outputs of the graph or values inside it. A
piece has the nodes that its group needs and that no earlier piece has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.scopes import ancestors, reads
from onward.message_text import suggest_names
from onward.passes.drop_unused import drop_unused


@dataclass(frozen=True)
class GraphPiece:
    """A part of a graph as a model.

    Its outputs are its group, then values for later pieces; its inputs are those of the graph's
    inputs that it reads, then values from earlier pieces.
    """

    model: ir.Model
    takes: list[str]  # values that earlier pieces compute
    gives: list[str]  # values for later pieces, in addition to the group


def split(model: ir.Model, groups: Sequence[Sequence[str]]) -> list[GraphPiece]:
    """The pieces of a model that compute these groups of values; the model is not changed."""
    graph = model.graph
    made = {str(value.name): value for node in graph for value in node.outputs if value.name}
    piece_of: dict[ir.Node, int] = {}
    for i, group in enumerate(groups):
        needed = ancestors(graph, [_value(made, graph, name) for name in group])
        for node in graph:
            if node not in piece_of and any(value in needed for value in node.outputs):
                piece_of[node] = i
    readers: dict[str, set[int]] = {}
    for node, i in piece_of.items():
        for value in reads(node):
            maker = value.producer()
            if maker is not None and piece_of.get(maker, i) < i:
                readers.setdefault(str(value.name), set()).add(i)
    for i, group in enumerate(groups):  # values of earlier pieces that this one returns
        for name in group:
            maker = made[name].producer() if name in made else None
            if maker is not None and piece_of[maker] < i:
                readers.setdefault(name, set()).add(i)
    pieces = []
    for i, group in enumerate(groups):
        takes = [name for name, others in readers.items() if i in others]
        here = {str(v.name) for node, piece in piece_of.items() if piece == i for v in node.outputs}
        gives = [name for name in readers if name in here and name not in group]
        pieces.append(GraphPiece(_piece(model, group, takes, gives), takes, gives))
    return pieces


def _piece(
    model: ir.Model, group: Sequence[str], takes: Sequence[str], gives: Sequence[str]
) -> ir.Model:
    copy = model.clone()
    graph = copy.graph
    known = {str(value.name): value for value in (*graph.inputs, *graph.initializers.values())}
    known |= {str(value.name): value for node in graph for value in node.outputs}
    graph.outputs.clear()
    for name in takes:
        value = known[name]
        fed = ir.val(name, type=value.type, shape=value.shape)
        value.name = f"{name}.made"
        ir.convenience.replace_all_uses_with(value, fed)
        graph.inputs.append(fed)
        known[name] = fed
    graph.outputs.extend(known[name] for name in dict.fromkeys([*group, *gives]))
    drop_unused(copy)
    graph.inputs[:] = [v for v in graph.inputs if v.uses() or v.is_graph_output()]
    return copy


def _value(made: dict[str, ir.Value], graph: ir.Graph, name: str) -> ir.Value:
    given = {str(value.name): value for value in (*graph.inputs, *graph.initializers.values())}
    if name not in made and name not in given:
        raise OptionError(
            f"the graph has no value {name!r} to split at\n{suggest_names(name, made)}"
        )
    return made.get(name) or given[name]
