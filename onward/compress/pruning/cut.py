"""Cut: how a node is adjusted once positions are removed: attributes, shapes, indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.pruning.axes import Array, Positions, constant, known_sizes
from onward.graph.operator_table import OpTable
from onward.passes.rewrite import Names

CUTS = OpTable()  # what must change in a node when positions of its axes go


class Cut:
    """The removed positions of a model, and the means to adjust its nodes."""

    def __init__(self, model: ir.Model, positions: Positions, removed: Array) -> None:
        self._names = Names(model)
        self._positions = positions
        self._gone = removed[positions.labels]  # of every position

    def kept(self, value: ir.Value | None, axis: int) -> Array | None:
        """Which positions of an axis stay, as booleans; None if all do."""
        if value is None:
            return None
        sizes = known_sizes(value)
        if not sizes:
            return None
        axis %= len(sizes)
        start = self._positions.where.get((value, axis))
        if start is None:
            return None
        gone = self._gone[start : start + int(sizes[axis] or 0)]
        return None if not gone.any() else ~gone

    def size(self, value: ir.Value, axis: int) -> int:
        """The new size of an axis whose size is known."""
        kept = self.kept(value, axis)
        return int((known_sizes(value) or ())[axis] or 0) if kept is None else int(kept.sum())

    def changed(self, value: ir.Value) -> dict[int, int]:
        """The new size of each axis that is cut."""
        sizes = known_sizes(value) or ()
        return {
            axis: self.size(value, axis)
            for axis in range(len(sizes))
            if self.kept(value, axis) is not None
        }

    def set_attribute(self, node: ir.Node, name: str, number: int) -> None:
        """Give a node another number."""
        node.attributes[name] = ir.AttrInt64(name, number)

    def set_input(self, node: ir.Node, place: int, array: Any) -> None:
        """Let a node read a constant of its own."""
        while len(node.inputs) <= place:
            node.resize_inputs(place + 1)
        node.replace_input_with(place, self.constant(node, np.asarray(array)))

    def constant(self, node: ir.Node, array: Array) -> ir.Value:
        """A new initializer in a node's graph."""
        name = self._names.fresh(f"{node.name or node.op_type}_pruned")
        value = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
            const_value=ir.tensor(array, name=name),
        )
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        graph.register_initializer(value)
        return value

    def fix_sizes(self, node: ir.Node, place: int, numbers: dict[int, int]) -> None:
        """Replace some numbers of a vector of sizes that a node reads, computed or constant."""
        sizes = node.inputs[place]
        known = constant(sizes)
        if known is not None:
            fixed = known.copy()
            fixed[list(numbers)] = list(numbers.values())
            self.set_input(node, place, fixed)
            return
        assert sizes is not None
        count = (known_sizes(sizes) or (max(numbers) + 1,))[0] or max(numbers) + 1
        chosen = self._chosen(node, sizes, count, numbers)
        node.replace_input_with(place, chosen)

    def fix_result(self, node: ir.Node, numbers: dict[int, int]) -> None:
        """Replace some numbers of the vector that a node computes."""
        y = node.outputs[0]
        readers = [(use.node, use.idx) for use in y.uses()]
        count = (known_sizes(y) or (max(numbers) + 1,))[0] or max(numbers) + 1
        chosen = self._chosen(node, y, count, numbers, after=True)
        for reader, place in readers:
            reader.replace_input_with(place, chosen)

    def _chosen(
        self,
        node: ir.Node,
        sizes: ir.Value,
        count: int,
        numbers: dict[int, int],
        after: bool = False,
    ) -> ir.Value:
        mask, given = np.zeros(count, bool), np.zeros(count, np.int64)
        mask[list(numbers)], given[list(numbers)] = True, list(numbers.values())
        where = ir.node(
            "Where",
            inputs=[self.constant(node, mask), self.constant(node, given), sizes],
            name=self._names.fresh(f"{node.name or node.op_type}_sizes"),
        )
        out = where.outputs[0]
        out.name = self._names.fresh(f"{sizes.name}_pruned")
        out.type, out.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([count])
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        (graph.insert_after if after else graph.insert_before)(node, where)
        return out
