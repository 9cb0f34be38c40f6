"""Compute dropout masks where they are read, instead of keeping them for the backward pass.

A mask is a function of the step and its position, which a compiler fuses into what reads it: to
compute it twice costs less than to write and read it, and no memory.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.passes.random_functions import DROPOUT_MASK, calls
from onward.passes.rewrite import Names, copy_node


def repeat_masks(model: ir.Model) -> ir.Model:
    """Give every reader of a dropout mask a separate mask, right before it, in place."""
    names = Names(model)
    for call in calls(model.graph, DROPOUT_MASK):
        mask = call.outputs[0]
        if mask.is_graph_output():
            continue
        for reader, index in list(mask.uses())[1:]:
            if reader.graph is not model.graph:  # a subgraph reads it
                continue
            copy = copy_node(call, call.inputs, names, "again")
            model.graph.insert_before(reader, copy)
            reader.replace_input_with(index, copy.outputs[0])
    return model
