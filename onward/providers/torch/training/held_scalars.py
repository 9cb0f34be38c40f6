"""Compute the scalars of an update once, not where each of its larger values is computed.

    y = x * (1 - rate decay)  ->  held = onward.torch::Hold(1 - rate decay),  y = x * held

On a CPU a compiler writes scalars where they are read: powers of the step number, roots and
quotients were computed for each 16 parameters, and took longer than the update itself. On a GPU
the memory bounds an update: nothing is held there.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.passes.rewrite import Names
from onward.providers.torch.kernels.memory import HOLD
from onward.providers.torch.private_domain import DOMAIN


def hold_scalars(model: ir.Model) -> ir.Model:
    """Hold what is computed of scalars alone, and read with larger values, in place."""
    graph = model.graph
    of_scalars: set[ir.Node] = set()
    for node in graph:
        values = (value for value in (*node.inputs, *node.outputs) if value is not None)
        if all(map(_is_scalar, values)) and {*node.predecessors()} <= of_scalars:
            of_scalars.add(node)
    uses = {
        value: [
            (reader, index)
            for reader, index in value.uses()
            if reader.graph is graph and reader not in of_scalars
        ]
        for node in graph
        if node in of_scalars and node.op_type != "Constant"
        for value in node.outputs
    }
    chosen = [value for value, readers in uses.items() if readers]
    if not chosen:
        return model
    names = Names(model)
    hold = ir.Node(DOMAIN, HOLD, chosen, num_outputs=len(chosen), name=names.fresh(HOLD))
    for value, held in zip(chosen, hold.outputs):
        held.name, held.type, held.shape = names.fresh("held"), value.type, value.shape
        for reader, index in uses[value]:
            reader.replace_input_with(index, held)
    graph.append(hold)
    graph.sort()
    model.opset_imports[DOMAIN] = 1
    return model


def _is_scalar(value: ir.Value) -> bool:
    return value.shape is not None and not value.shape.dims
