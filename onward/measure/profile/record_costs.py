"""The FLOPs and bytes of each record of a trace.

Names and attributes come from the graph that the engine ran, shapes from the run itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.costs.flops import COUNTED_BY_SHAPE, NodeCall, Tensor, UnknownShape
from onward.graph.costs.node_costs import Cost, call_cost, declared, is_view, node_cost
from onward.graph.files import load
from onward.graph.scopes import bodies, reads
from onward.graph.shapes.infer import infer_shapes
from onward.graph.shapes.value_dependent import infer_computed_shapes
from onward.measure.profile.trace import PART, Record


class Graphs:
    """The graphs that the engines of one session ran, and the tensors that went through them."""

    def __init__(self, models: Iterable[ir.Model], feeds: Mapping[str, Tensor]) -> None:
        self._models = list(models)
        self._by_name: dict[tuple[str, str], ir.Node] = {}
        self._by_output: dict[str, ir.Node] = {}
        self._named: dict[str, ir.Node] = {}
        for model in self._models:
            for node in ir.traversal.RecursiveGraphIterator(model.graph):
                self._by_name.setdefault((node.op_type, node.name or ""), node)
                self._named.setdefault(node.name or "", node)
                for value in node.outputs:
                    self._by_output.setdefault(value.name or "", node)
        self.tensors: dict[str, Tensor] = dict(feeds)  # every value that was seen, by name

    def node(self, record: Record) -> ir.Node | None:
        """The node of a record."""
        found = self._by_name.get((record.operator, record.node))
        if found is None and record.output_names and record.operator != PART:
            # An engine with its own operators keeps the names, or adds a suffix to them.
            for name in (record.output_names[0], record.node.rpartition("/")[0]):
                found = found or self._by_output.get(name) or self._named.get(name)
        return found

    def infer(self) -> None:
        """Infer the shapes that no engine recorded, from those of the feeds."""
        for model in self._models:
            for value in model.graph.inputs:
                seen = self.tensors.get(value.name or "")
                if seen is not None and seen.shape is not None:
                    value.shape = ir.Shape(seen.shape)
            infer_computed_shapes(infer_shapes(model))

    def cost(self, record: Record) -> Cost:
        """The FLOPs and bytes of one record; stores the shapes that it has."""
        if record.operator == PART:
            return self._part_cost(record)
        node = self.node(record)
        if node is None:
            return _from_record(record)
        if bodies(node):
            self._store_shapes(node, record)
            return Cost()  # its nodes have their own records
        inputs = tuple(None if value is None else self._tensor(value) for value in node.inputs)
        given = [place for place, value in enumerate(node.inputs) if value is not None]
        if len(record.inputs) == len(given):
            seen = dict(zip(given, record.inputs, strict=True))
            inputs = tuple(seen.get(place) for place in range(len(node.inputs)))
        self._store_shapes(node, record)
        outputs = tuple(self._tensor(value) if value.name else None for value in node.outputs)
        try:
            return call_cost(NodeCall(node, inputs, outputs))
        except (UnknownShape, IndexError, ValueError):
            return _from_record(record)

    def _tensor(self, value: ir.Value) -> Tensor:
        return self.tensors.get(value.name or "") or declared(value)

    def _store_shapes(self, node: ir.Node, record: Record) -> None:
        named = [value for value in node.outputs if value.name]
        if len(named) == len(record.outputs):
            self.tensors.update(
                (str(value.name), tensor)
                for value, tensor in zip(named, record.outputs, strict=True)
            )

    def _part_cost(self, record: Record) -> Cost:
        """A compiled part: the FLOPs of all its nodes, the bytes of its inputs and outputs."""
        nodes = self._inside(record)
        total = sum((node_cost(node, self._tensor) for node in nodes), Cost())
        weights = {v for node in nodes for v in reads(node) if v.const_value is not None}
        border = [self._by_output.get(name) for name in record.output_names]
        given = [
            self._tensor(value)
            for node in border
            if node is not None
            for value in node.outputs
            if value.name in record.output_names
        ]
        taken = [self.tensors.get(name) for name in record.takes]
        read = _bytes(taken) + _bytes(declared(value) for value in weights)
        return Cost(total.flops, read, _bytes(given), "estimate")

    def _inside(self, record: Record) -> list[ir.Node]:
        found: dict[ir.Node, None] = {}
        waiting = [name for name in record.output_names if name not in record.takes]
        while waiting:
            node = self._by_output.get(waiting.pop())
            if node is not None and node not in found:
                found[node] = None
                waiting += [str(v.name) for v in reads(node) if v.name not in record.takes]
        return list(found)

    def live_bytes(self, records: list[Record]) -> list[tuple[float, int]]:
        """Bytes of the tensors that are still needed, after each record of one iteration.

        A view keeps its tensor alive; the outputs live to the end.
        """
        nodes = [self.node(record) for record in records]
        if not any(nodes):  # the graph is unknown
            return []
        owner: dict[str, str] = {}
        last: dict[str, int] = {}
        for number, node in enumerate(nodes):
            if node is None:
                continue
            for value in reads(node):
                name = str(value.name)
                last[owner.get(name, name)] = number
            for value in node.outputs:
                name = str(value.name)
                source = node.inputs[0] if is_view(node) and node.inputs else None
                if source is not None and source.const_value is None:
                    owner[name] = owner.get(str(source.name), str(source.name))
                last.setdefault(owner.get(name, name), number)
        for model in self._models:
            for value in model.graph.outputs:
                name = str(value.name)
                last[owner.get(name, name)] = len(nodes)
        return self._curve(records, nodes, owner, last)

    def _curve(
        self,
        records: list[Record],
        nodes: list[ir.Node | None],
        owner: Mapping[str, str],
        last: Mapping[str, int],
    ) -> list[tuple[float, int]]:
        live: dict[str, int] = {}
        points = []
        for number, (record, node) in enumerate(zip(records, nodes, strict=True)):
            for value in node.outputs if node is not None else ():
                name = str(value.name)
                if name not in owner:
                    live[name] = _bytes([self._tensor(value)])
            points.append((record.start, sum(live.values())))
            live = {name: size for name, size in live.items() if last.get(name, 0) > number}
        return points


def read_graphs(folder: Path, feeds: Mapping[str, Tensor]) -> Graphs:
    """The optimised graphs that a session wrote to a folder; onnxruntime's parts come first."""
    models = []
    for path in sorted(folder.glob("*.onnx"), key=lambda path: (-len(path.suffixes), path.name)):
        try:
            models.append(load(path, any_domain=True))  # written by the engine itself
        except OnwardError:  # costs are then estimated only from the records
            continue
    return Graphs(models, feeds)


def _from_record(record: Record) -> Cost:
    """The cost by the record's own shapes: without weights and attributes."""
    node = ir.Node("", record.operator, (), num_outputs=len(record.outputs))
    try:
        cost = call_cost(NodeCall(node, record.inputs, record.outputs))
    except (UnknownShape, IndexError, ValueError):
        return Cost(basis="unknown")
    return cost if record.operator in COUNTED_BY_SHAPE else cost + Cost(basis="estimate")


def _bytes(tensors: Iterable[Tensor | None]) -> int:
    total = 0
    for tensor in tensors:
        if tensor is not None and tensor.shape is not None and tensor.dtype is not None:
            total += tensor.nbytes
    return total
