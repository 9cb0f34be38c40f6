"""Keep the order of a train graph in compiled code: values that a compiler takes for changed.

    y = onward::RunAfter(x, token)  ->  y = onward.torch::ChangeAfter(x, token)
                                        y = onward.torch::CopyAfter(x, token)    if x is a feed

A compiler merges equal nodes, fuses nodes that read the same values, and moves them: what the
backward pass computes again would be stored in the forward pass. An operator that says to change x
stops all three, and copies nothing. Feeds are the caller's: they are copied.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onward.graph.operators import VIEWS, named
from onward.passes.memory_functions import is_await, is_barrier
from onward.providers.torch.kernels.memory import CHANGE_AFTER, COPY_AFTER
from onward.providers.torch.private_domain import DOMAIN

_VIEWS = VIEWS | named("Cast Expand Gather Slice Split Transpose")  # torch may copy nothing


def write_barriers(model: ir.Model, feeds: Collection[str]) -> ir.Model:
    """Replace calls of RunAfter by operators that a compiler keeps in order, in place."""
    found = [node for node in model.graph if is_barrier(node)]
    for node in found:
        given = node.inputs[0]
        name = COPY_AFTER if given is not None and _origin(given).name in feeds else CHANGE_AFTER
        node.domain, node.op_type = DOMAIN, name
    if found:
        model.opset_imports[DOMAIN] = 1
    return model


def _origin(value: ir.Value) -> ir.Value:
    """The value whose memory this one may share."""
    node = value.producer()
    while node is not None and node.inputs and node.inputs[0] is not None:
        if not (is_await(node) or (node.domain == "" and node.op_type in _VIEWS)):
            break
        value = node.inputs[0]
        node = value.producer()
    return value
