"""Keep forward values that wait for the backward pass in host memory, or in 8 bits."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from onward.graph.dtypes import FLOATS
from onward.graph.scopes import COMPOSITES
from onward.passes.memory_functions import (
    AWAIT_FETCH,
    AWAIT_OFFLOAD,
    BLOCK,
    DEQUANTIZE,
    FETCH,
    OFFLOAD,
    QUANTIZE,
    RUN_AFTER,
    register_memory_function,
)
from onward.passes.rewrite import Names
from onward.programs.memory.forward_backward import ForwardBackward, sources, storage_of
from onward.programs.memory.repeat_nodes import RESTORES
from onward.programs.memory.train_sizes import COPY_OF, TrainSizes, node_key

_SMALLEST = 1 << 16  # bytes: to move or convert less takes longer than it is worth
_AHEAD = 32  # backward nodes that run while a value is fetched
_UNDER_WAY = 2  # copies to the host that the forward pass does not wait for


@dataclass
class _Waiting:
    """A storage, its last forward reader, and where the backward reads it or views of it."""

    value: ir.Value
    last: ir.Node
    reads: list[tuple[ir.Node, int]] = field(default_factory=list)  # (node, input)
    first: int = 0  # the number of the first reader among backward nodes


def stash_values(
    model: ir.Model, parts: ForwardBackward, sizes: TrainSizes, *, offload: bool, eight_bits: bool
) -> int:
    """Let the backward read restored values instead of those that waited, in place; how many."""
    backward = [node for node in parts.nodes if node in parts.backward]
    found = _find_waiting(parts, sizes, backward)
    writer = _Writer(model)
    count = 0
    for each in found:
        is_float = each.value.dtype in FLOATS
        if offload and each.first > _AHEAD:
            restore = writer.offload(each, backward[each.first - _AHEAD])
        elif eight_bits and is_float:
            restore = writer.quantize(each)
        else:
            continue
        count += 1
        views = {each.value: restore}
        for node, index in each.reads:
            given = node.inputs[index]
            assert given is not None
            node.replace_input_with(index, writer.view(given, views, node))
    writer.await_offloads()
    return count


def _find_waiting(
    parts: ForwardBackward, sizes: TrainSizes, backward: list[ir.Node]
) -> list[_Waiting]:
    """The large storages that wait for the backward pass."""
    last: dict[ir.Value, ir.Node] = {}
    for node in parts.forward:
        last.update({storage_of(value): node for value in (*node.outputs, *sources(node))})
    fixed = {storage_of(value) for value in parts.fixed}
    found: dict[ir.Value, _Waiting] = {}
    for number, node in enumerate(backward):
        for index, value in enumerate(node.inputs):
            if value is None or value not in parts.place:
                continue
            storage = storage_of(value)
            if storage not in parts.place or storage.is_graph_output() or storage in fixed:
                continue
            if sizes.bytes_of(storage) < _SMALLEST or value.is_graph_output():
                continue
            each = found.setdefault(storage, _Waiting(storage, last[storage], first=number))
            each.reads.append((node, index))
    return list(found.values())


class _Writer:
    """Writes calls that put values away and restore them."""

    def __init__(self, model: ir.Model) -> None:
        self._model, self._graph, self._names = model, model.graph, Names(model)

    def offload(self, waiting: _Waiting, ahead: ir.Node) -> ir.Value:
        """Move a value to host memory, and back before its first use."""
        value, (reader, _) = waiting.value, waiting.reads[0]
        (held,) = self._call(OFFLOAD, [value], after=waiting.last)
        held.type, held.shape = value.type, value.shape
        (fetched,) = self._call(FETCH, [held, _token(ahead) or held], before=ahead)
        (ready,) = self._call(AWAIT_FETCH, [fetched], before=reader, restores=value)
        for each in (fetched, ready):
            each.type, each.shape = value.type, value.shape
        return ready

    def await_offloads(self) -> None:
        """Wait for each copy to the host before the second after it, or before it is fetched.

        A value lives until then: without it, all could be on their way, in device memory still.
        """
        under_way: dict[ir.Value, ir.Value] = {}  # value in host memory -> on the device
        for node in [n for n in self._graph if n.op_type in (OFFLOAD, FETCH)]:
            held, source = node.outputs[0], node.inputs[0]
            assert source is not None
            waits = list(under_way)[: max(len(under_way) + 1 - _UNDER_WAY, 0)]
            if node.op_type == FETCH:
                waits = [source] if source in under_way else []
            for each in waits:
                (stored,) = self._call(AWAIT_OFFLOAD, [each, under_way.pop(each)], before=node)
                stored.type, stored.shape = each.type, each.shape
                for use in each.uses():
                    if use.node.op_type == FETCH:
                        use.node.replace_input_with(use.idx, stored)
            if node.op_type == OFFLOAD:
                under_way[held] = source

    def quantize(self, waiting: _Waiting) -> ir.Value:
        """Convert a value to 8 bits, and back before its first use."""
        value, (reader, _) = waiting.value, waiting.reads[0]
        shape = ir.Node("", "Shape", [value], name=self._names.fresh(f"{value.name}/Shape"))
        sizes = shape.outputs[0]
        sizes.name = self._names.fresh(f"{value.name}/shape")
        sizes.dtype = ir.DataType.INT64
        sizes.shape = ir.Shape([None if value.shape is None else len(value.shape)])
        self._graph.insert_after(waiting.last, shape)
        q, scale = self._call(QUANTIZE, [value], after=shape, outputs=2)
        q.dtype, q.shape = ir.DataType.INT8, ir.Shape([None, BLOCK])
        scale.type, scale.shape = value.type, ir.Shape([None, 1])
        token = _token(reader)
        if token is not None:
            (later,) = self._call(RUN_AFTER, [q, token], before=reader)
            later.type, later.shape = q.type, q.shape
            q = later
        (ready,) = self._call(DEQUANTIZE, [q, scale, sizes], before=reader, restores=value)
        ready.type, ready.shape = value.type, value.shape
        return ready

    def view(self, value: ir.Value, views: dict[ir.Value, ir.Value], reader: ir.Node) -> ir.Value:
        """A value, computed from the restored storage that it is a view of."""
        if value not in views:
            node = value.producer()
            assert node is not None and node.inputs[0] is not None
            copy = ir.Node(
                node.domain,
                node.op_type,
                [self.view(node.inputs[0], views, reader), *node.inputs[1:]],
                list(node.attributes.values()),
                name=self._names.fresh(f"{node.name or node.op_type}/restored"),
                metadata_props={**node.metadata_props, COPY_OF: node_key(node)},
            )
            copy.outputs[0].name = self._names.fresh(f"{value.name}/restored")
            copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
            self._graph.insert_before(reader, copy)
            views[value] = copy.outputs[0]
        return views[value]

    def _call(
        self,
        name: str,
        inputs: list[ir.Value],
        *,
        outputs: int = 1,
        after: ir.Node | None = None,
        before: ir.Node | None = None,
        restores: ir.Value | None = None,
    ) -> list[ir.Value]:
        register_memory_function(self._model, name)
        stem = f"{inputs[0].name}/{name}"
        metadata = {} if restores is None else {RESTORES: str(restores.name)}
        node = ir.Node(
            COMPOSITES,
            name,
            inputs,
            num_outputs=outputs,
            name=self._names.fresh(stem),
            metadata_props=metadata,
        )
        for value in node.outputs:
            value.name = self._names.fresh(f"{stem}_result")
        if after is not None:
            self._graph.insert_after(after, node)
        else:
            assert before is not None
            self._graph.insert_before(before, node)
        return list(node.outputs)


def _token(reader: ir.Node) -> ir.Value | None:
    """A value that the backward has computed before a node runs."""
    made = [v for v in reader.inputs if v is not None and v.producer() is not None]
    return next((v for v in reversed(made) if v.dtype in FLOATS), None)
