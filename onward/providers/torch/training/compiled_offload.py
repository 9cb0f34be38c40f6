"""Move activations to host memory in compiled code: calls become operators that a compiler keeps.

    h = onward::OffloadToHost(x)        held = onward.torch::CopyToHost(x)
    s = onward::AwaitOffload(h, x)      stored = onward.torch::AwaitHostCopy(held, x)
    p = onward::FetchFromHost(s, t)     sent = onward.torch::CopyToDevice(held, stored, t)
    y = onward::AwaitFetch(p)           y = onward.torch::AwaitDeviceCopy(held, sent)

`stored` and `sent` are tokens of one byte, which order the operators.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.graph.scopes import COMPOSITES
from onward.passes.memory_functions import AWAIT_FETCH, AWAIT_OFFLOAD, FETCH, OFFLOAD
from onward.passes.rewrite import Names, remove_node, take_over
from onward.providers.torch.kernels.host_copies import (
    AWAIT_DEVICE_COPY,
    AWAIT_HOST_COPY,
    COPY_TO_DEVICE,
    COPY_TO_HOST,
    HostCopy,
)
from onward.providers.torch.private_domain import DOMAIN


def write_host_copies(model: ir.Model) -> list[HostCopy]:
    """Replace calls that move values to the host and back, in place; the memory that they use."""
    writer = _Writer(model)
    for node in list(model.graph):
        if node.domain == COMPOSITES and node.op_type in _OPERATORS:
            writer.replace(node)
    return writer.copies


_OPERATORS = {
    OFFLOAD: COPY_TO_HOST,
    AWAIT_OFFLOAD: AWAIT_HOST_COPY,
    FETCH: COPY_TO_DEVICE,
    AWAIT_FETCH: AWAIT_DEVICE_COPY,
}


class _Writer:
    """Writes the operators of each value, in the order of the graph."""

    def __init__(self, model: ir.Model) -> None:
        self._model, self._graph, self._names = model, model.graph, Names(model)
        self.copies: list[HostCopy] = []
        self._held: dict[
            ir.Value, tuple[ir.Value, int]
        ] = {}  # and its number, by each value made of it

    def replace(self, call: ir.Node) -> None:
        given = [value for value in call.inputs if value is not None]
        if call.op_type == OFFLOAD:
            self.copies.append(HostCopy())
            node = self._node(call, given, self.copies[-1].number)
            self._held[node.outputs[0]] = node.outputs[0], self.copies[-1].number
            return
        held, number = self._held[given[0]]
        tokens = [value for value in given if value is not held]
        node = self._node(call, [held, *tokens], number)
        self._held[node.outputs[0]] = held, number
        if call.op_type != AWAIT_FETCH:  # a token
            node.outputs[0].type = ir.TensorType(ir.DataType.UINT8)
            node.outputs[0].shape = ir.Shape([1])

    def _node(self, call: ir.Node, inputs: Sequence[ir.Value], number: int) -> ir.Node:
        """An operator in place of a call."""
        name = _OPERATORS[call.op_type]
        node = ir.Node(
            DOMAIN,
            name,
            inputs,
            [ir.AttrInt64("number", number)],
            name=self._names.fresh(f"{call.name}/{name}"),
        )
        self._model.opset_imports[DOMAIN] = 1
        self._graph.insert_before(call, node)
        take_over(call.outputs[0], node.outputs[0])
        remove_node(call, self._graph)
        return node
