"""Separate a captured loss from the model that it is computed from.

    model, loss = separate_loss(model, "loss", kept)

A module that is captured with its loss takes labels and returns the loss in addition to its own
results. Separately, the model predicts without labels, and the loss is a graph that is added to it.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onward.graph.scopes import ancestors, reads
from onward.losses.combined import Graph, Output
from onward.losses.loss import Loss
from onward.passes.drop_unused import drop_unused


def separate_loss(
    model: ir.Model, loss: str, tensors: Collection[str]
) -> tuple[ir.Model, Loss, list[str]]:
    """A prepared model without the nodes of its loss, the loss, and the targets of the loss.

    `tensors` are the module's parameters and buffers. The model stays whole if no other output is
    left, if another one depends on the loss, or if the loss has tensors of its own.
    """
    graph = model.graph
    outputs = {str(value.name): value for value in graph.outputs}
    made = outputs.pop(loss)
    kept = ancestors(graph, outputs.values())
    nodes = [n for n in graph if not any(value in kept for value in n.outputs)]
    needed = ancestors(graph, [made])
    nodes = [node for node in nodes if any(value in needed for value in node.outputs)]
    read = {value for node in nodes for value in reads(node)}
    own = {str(v.name) for v in read if v.is_initializer() and v not in kept} & {*tensors}
    if not outputs or made in kept or own:
        return model, Output(loss), []
    targets = [str(v.name) for v in graph.inputs if v in read and v not in kept]
    border = [v for v in read if v in kept and not _is_constant(v, tensors)]
    part = _loss_part(model, loss, [str(v.name) for v in border])
    rest = model.clone()
    rest.graph.outputs[:] = [v for v in rest.graph.outputs if v.name != loss]
    drop_unused(rest)
    rest.graph.inputs[:] = [v for v in rest.graph.inputs if v.name not in targets]
    return rest, Graph(part), targets


def _is_constant(value: ir.Value, tensors: Collection[str]) -> bool:
    return value.is_initializer() and value.name not in tensors


def _loss_part(model: ir.Model, loss: str, border: Collection[str]) -> ir.Model:
    """The nodes between the border and the loss, as a model whose inputs they read."""
    part = model.clone()
    graph = part.graph
    graph.outputs[:] = [value for value in graph.outputs if value.name == loss]
    found = [value for node in graph for value in node.outputs if value.name in border]
    found += [v for name, v in graph.initializers.items() if name in border]
    for value in found:
        given = ir.Value(name=value.name, shape=value.shape, type=value.type)
        value.replace_all_uses_with(given)
        value.name = f"{value.name}.computed"
        graph.inputs.append(given)
    drop_unused(part)
    used = [v for v in graph.inputs if v.uses() or v.is_graph_output()]
    graph.inputs[:] = used
    return part
