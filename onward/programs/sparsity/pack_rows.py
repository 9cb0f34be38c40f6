"""Rewrite nodes that work row by row, so that they compute only the rows that are kept.

    x (batch, time, size) -> Reshape -> PackTokens (kept, size) -> MatMul, Add, Gelu, ... ->
    UnpackTokens (batch * time, size) -> Reshape (batch, time, size)

Rows are packed where such a node reads a value that is computed with all rows, and unpacked where
another node reads its result, or the graph returns it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.operators import SHAPE_ONLY
from onward.passes.rewrite import Names
from onward.passes.token_functions import DOMAIN, PACK, UNPACK, register
from onward.passes.value_facts import attribute, dims, made_by
from onward.programs.derived_feeds import PackedRows
from onward.programs.sparsity.packed_forms import BROADCAST, change_form
from onward.programs.sparsity.row_axes import MERGED, BatchSequenceAxes, RowAxes
from onward.programs.sparsity.unread_rows import LOSSES

Sizes = Sequence[int | str | None]


class RowPacker:
    """Packs nodes of a graph, in place, by the rows of one `PackedRows`.

    `source` is a feed of shape (batch, time); `nodes` are those that have a packed form, and losses
    that ignore the rows that are left out.
    """

    def __init__(
        self,
        model: ir.Model,
        rows: RowAxes,
        source: ir.Value,
        packed: PackedRows,
        nodes: Collection[ir.Node],
    ) -> None:
        self._graph, self._names = model.graph, Names(model)
        self._source, self._nodes = source, nodes
        used = {v for n in nodes for v in (*n.inputs, *n.outputs) if v is not None}
        self._axes = {v: axes for v in used if (axes := rows.of(v)) is not None}
        self._sizes = {v: rows.sizes(v) or () for v in used}
        self._row_inputs = {node: rows.row_inputs(node) for node in nodes}
        self._kept = f"{packed.gather}.size"
        self._gather = self._input(packed.gather, self._kept)
        self._restore = self._input(packed.restore, f"{packed.restore}.size")
        self._packs: dict[Any, ir.Value] = {}
        self._shapes: dict[tuple[int, ...], ir.Value] = {}
        self._made: list[ir.Node] = []  # nodes that are not in the graph yet
        for name in (PACK, UNPACK):
            register(model, name)

    def pack(self) -> None:
        """Pack all nodes."""
        for node in [node for node in self._graph if node in self._nodes]:
            if node.op_type in LOSSES:
                self._pack_loss(node)
            else:
                self._pack_inputs(node)
                change_form(node, self._axes, self._sizes, self.constant)
            self._insert_before(node)
            for y in node.outputs:
                if y in self._axes and y.name and node.op_type not in LOSSES:
                    self._pack_output(node, y)

    # -- inputs --------------------------------------------------------------------------------

    def _pack_inputs(self, node: ir.Node) -> None:
        rows, y = self._row_inputs[node], node.outputs[0]
        axes, rank = self._axes[y], len(self._sizes[y])
        for index, value in enumerate(node.inputs):
            if value is not None and index in rows:
                node.replace_input_with(index, self._packed(value))
            elif value is not None and node.op_type in BROADCAST:
                node.replace_input_with(index, self._broadcast(value, axes, rank))

    def _pack_loss(self, node: ir.Node) -> None:
        """Scores (batch * time, classes) or (batch, classes, time), and their labels."""
        scores, labels = node.inputs[:2]
        assert scores is not None and labels is not None
        classes = self._sizes[scores][1]
        if self._axes[scores] == MERGED:
            node.replace_input_with(0, self._packed(scores))
        else:
            turn = made_by(scores, "Transpose")
            back = None if turn is None or attribute(turn, "perm") != (0, 2, 1) else turn.inputs[0]
            if back is None:
                back = self._typed(
                    self._make("Transpose", scores, perm=[0, 2, 1]), scores, [None, None, classes]
                )
            node.replace_input_with(0, self._pack_flat(self._flat(back, [classes]), [classes]))
        flat = labels if len(self._sizes[labels]) == 1 else self._flat(labels, [])
        node.replace_input_with(1, self._pack_flat(flat, []))

    def _packed(self, value: ir.Value) -> ir.Value:
        """A value with the rows that are kept."""
        if value.producer() in self._nodes:
            return value
        if value not in self._packs:
            axes = self._axes[value]
            rest = self._sizes[value][axes.count :]
            flat = value if axes == MERGED else self._flat(value, rest)
            self._packs[value] = self._pack_flat(flat, rest)
        return self._packs[value]

    def _broadcast(self, value: ir.Value, axes: BatchSequenceAxes, rank: int) -> ir.Value:
        """A value without rows, in a shape that is broadcast to rows that are packed."""
        sizes = self._sizes[value]
        present = axes.count - (rank - len(sizes))  # how many of the rows' axes it has
        if present <= 0 or (present == 1 and sizes[0] == 1):
            return value
        if all(size == 1 for size in sizes[:present]):
            first = self._make("Squeeze", value, self.constant([0]))
            return self._typed(first, value, sizes[1:])
        if (value, present) not in self._packs:
            rest = sizes[present:]
            full = self._make("Expand", value, self._shape_of_rows([1] * len(rest)))
            full = self._typed(full, value, [*(dims(self._source) or ()), *rest])
            self._packs[value, present] = self._pack_flat(self._flat(full, rest), rest)
        return self._packs[value, present]

    def _flat(self, value: ir.Value, rest: Sequence[int]) -> ir.Value:
        """(batch, time, ...) -> (batch * time, ...)"""
        # with the sizes of `source`: a feed of another length must fail, not be packed wrongly
        shape = self._shape_of_rows(rest, merged=True)
        flat = self._make("Reshape", value, shape, allowzero=0)
        return self._typed(flat, value, [None, *rest])

    def _pack_flat(self, flat: ir.Value, rest: Sequence[int]) -> ir.Value:
        call = self._make(PACK, flat, self._gather, self._restore, domain=DOMAIN)
        return self._typed(call, flat, [self._kept, *rest])

    # -- outputs -------------------------------------------------------------------------------

    def _pack_output(self, node: ir.Node, y: ir.Value) -> None:
        """Give an output its packed shape; other readers read an unpacked copy."""
        count, before = self._axes[y].count, y.shape
        rest = self._sizes[y][count:]
        y.shape = ir.Shape([self._kept, *rest])
        uses = [(user, index) for user, index in y.uses() if user not in self._nodes]
        for user, _ in uses:
            if user.op_type in SHAPE_ONLY:
                self._replace_shape(user, rest, merged=count == 1)
        uses = [(user, index) for user, index in uses if user.op_type not in SHAPE_ONLY]
        if not uses and not y.is_graph_output():
            return
        dense = self._make(UNPACK, y, self._gather, self._restore, domain=DOMAIN)
        self._typed(dense, y, [None, *rest])
        if count == 2:
            dense = self._make("Reshape", dense, self._shape_of_rows(rest), allowzero=0)
        dense.type, dense.shape = y.type, before
        self._graph.insert_after(node, self._made)
        self._made = []
        for user, index in uses:
            user.replace_input_with(index, dense)
        if y.is_graph_output():
            dense.name, y.name = y.name, self._names.fresh(f"{y.name}.packed")
            for index, output in enumerate(self._graph.outputs):
                if output is y:
                    self._graph.outputs[index] = dense

    def _replace_shape(self, node: ir.Node, rest: Sequence[int], *, merged: bool) -> None:
        """Let a Shape or Size of a value that is now packed be that of all rows."""
        shape = self._shape_of_rows(rest, merged=merged)
        start, end = attribute(node, "start", 0), attribute(node, "end")
        if node.op_type == "Size":
            result = self._make("ReduceProd", shape, keepdims=0)
        else:
            ends = self.constant([np.iinfo(np.int64).max if end is None else end])
            result = self._make("Slice", shape, self.constant([start]), ends, self.constant([0]))
        old = node.outputs[0]
        result.type, result.shape = old.type, old.shape
        self._insert_before(node)
        old.replace_all_uses_with(result, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)

    def _shape_of_rows(self, rest: Sequence[int], *, merged: bool = False) -> ir.Value:
        """(batch, time, ...) or (batch * time, ...) as a vector, computed before all else."""
        known = [d for d in dims(self._source) or () if isinstance(d, int)]
        if len(known) == 2:
            return self.constant([known[0] * known[1], *rest] if merged else [*known, *rest])
        key = (int(merged), *rest)
        if key not in self._shapes:
            waiting, self._made = self._made, []
            sizes = self._make("Shape", self._source)
            if merged:
                size = self._make("Size", self._source)
                sizes = self._make("Reshape", size, self.constant([1]))
            shape = self._make("Concat", sizes, self.constant(rest), axis=0) if rest else sizes
            shape.dtype = sizes.dtype = ir.DataType.INT64
            shape.shape = ir.Shape([len(rest) + (1 if merged else 2)])
            self._insert_before(self._graph[0])
            self._made, self._shapes[key] = waiting, shape
        return self._shapes[key]

    # -- nodes ---------------------------------------------------------------------------------

    def constant(self, numbers: Sequence[int]) -> ir.Value:
        """A new initializer of integers."""
        name = self._names.fresh("onward.packing.constant")
        tensor = ir.tensor(np.array(numbers, np.int64), name=name)
        value = ir.val(name, const_value=tensor)
        self._graph.register_initializer(value)
        return value

    def _make(self, operator: str, *inputs: ir.Value, domain: str = "", **given: Any) -> ir.Value:
        node = ir.node(operator, inputs, given, domain=domain)
        node.name = self._names.fresh(f"onward.packing.{operator}")
        node.outputs[0].name = self._names.fresh(f"onward.packing.{operator}")
        self._made.append(node)
        return node.outputs[0]

    def _insert_before(self, node: ir.Node) -> None:
        self._graph.insert_before(node, self._made)
        self._made = []

    def _input(self, name: str, size: str) -> ir.Value:
        value = ir.val(name, dtype=ir.DataType.INT64, shape=[size])
        self._graph.inputs.append(value)
        return value

    @staticmethod
    def _typed(value: ir.Value, like: ir.Value, sizes: Sizes) -> ir.Value:
        value.type, value.shape = like.type, ir.Shape(list(sizes))
        return value
