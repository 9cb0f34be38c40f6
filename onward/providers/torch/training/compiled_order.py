"""Keep the order of a train graph in compiled code: values that a compiler takes for changed.

    y = onward::RunAfter(x, token)  ->  y = onward.torch::ChangeAfter(x, token, gradients, ...)
                                        y = onward.torch::CopyAfter(x, token, gradients, ...)
                                                                                 if x is a feed

A compiler merges equal nodes, fuses nodes that read the same values, and moves them: what the
backward pass computes again would be stored in the forward pass. An operator that says to change x
stops all three, and copies nothing. Feeds are the caller's: they are copied.

A compiler may also leave gradients of parameters for the end of the step, and keep what they are
computed from until then. So the operator reads what the backward pass has computed before it, since
the last one, for later: that must exist before values are computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from onward.graph.dtypes import FLOATS
from onward.graph.operators import VIEWS, named
from onward.graph.scopes import ancestors, origin, standard
from onward.passes.memory_functions import is_await, is_barrier
from onward.programs.program import LOSS
from onward.providers.torch.kernels.memory import CHANGE_AFTER, COPY_AFTER
from onward.providers.torch.private_domain import DOMAIN

_is_view = standard(VIEWS | named("Cast Expand Gather Slice Split Transpose"))  # may copy nothing


def write_barriers(model: ir.Model, feeds: Collection[str]) -> ir.Model:
    """Replace calls of RunAfter by operators that a compiler keeps in order, in place."""
    found = list(_barriers(model.graph))
    for node, waiting in found:
        given = node.inputs[0]
        assert given is not None
        storage = _storage(given)
        tokens = [v for v in waiting if v not in node.inputs and _storage(v) is not storage]
        first = len(node.inputs)
        node.resize_inputs(first + len(tokens))
        for index, token in enumerate(tokens, first):
            node.replace_input_with(index, token)
        name = COPY_AFTER if storage.name in feeds else CHANGE_AFTER
        node.domain, node.op_type = DOMAIN, name
    if found:
        model.opset_imports[DOMAIN] = 1
    return model


def _barriers(graph: ir.Graph) -> Iterator[tuple[ir.Node, list[ir.Value]]]:
    """Calls of RunAfter, each with what the backward pass computed since the last, for later."""
    places = {node: place for place, node in enumerate(graph)}
    forward = ancestors(graph, [value for value in graph.outputs if value.name == LOSS])
    fresh: list[ir.Value] = []
    for place, node in enumerate(graph):
        if is_barrier(node):
            yield node, [value for value in fresh if _is_read_after(value, place, places)]
            fresh = []
        else:
            fresh += [v for v in node.outputs if v.dtype in FLOATS and v not in forward]


def _is_read_after(value: ir.Value, place: int, places: dict[ir.Node, int]) -> bool:
    """Whether nodes behind a place, or the caller, read a value; subgraphs count as behind it."""
    readers = (places.get(use.node, len(places)) for use in value.uses())
    return value.is_graph_output() or any(reader > place for reader in readers)


def _storage(value: ir.Value) -> ir.Value:
    """The value whose memory this one may share."""
    return origin(value, lambda node: is_await(node) or _is_view(node))
