"""Find where each value has its tokens, and which nodes compute each token by itself.

A value of shape (batch, time, ...) has a row for each token, in other shapes too: (batch * time,
...), or (batch, heads, time, size). A node works row by row if row (b, t) of its output depends on
no other row of its inputs. Sizes are those of one trial; what is found holds for any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onward.graph.operators import BROADCASTING, REDUCTIONS, UNARY, VARIADIC
from onward.passes.value_facts import attribute, input_of, ints
from onward.programs.sparsity.trial_sizes import TrialSizes

_ELEMENTWISE = BROADCASTING | VARIADIC | UNARY | {"BitShift", "Where", "Dropout"}
_RESHAPES = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze"))
_NORMS = frozenset(("LayerNormalization", "RMSNormalization"))
_ALONG_AXIS = frozenset(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "Split"))


@dataclass(frozen=True)
class BatchSequenceAxes:
    """The axes of the batch and of the sequence; the same axis if they are one."""

    batch: int
    time: int

    @property
    def are_first(self) -> bool:
        """Whether rows are along the first axis, or the first two."""
        return self.batch == 0 and self.time in (0, 1)

    @property
    def count(self) -> int:
        """How many axes they are."""
        return 1 if self.batch == self.time else 2

    def shifted(self, by: int) -> BatchSequenceAxes:
        return BatchSequenceAxes(self.batch + by, self.time + by)


MERGED, LEADING = BatchSequenceAxes(0, 0), BatchSequenceAxes(0, 1)


class RowAxes:
    """The axes of the rows of a graph's values.

    `given` are axes that other analyses found: those of the outputs of attention.
    """

    def __init__(self, graph: ir.Graph, trial: TrialSizes) -> None:
        self._trial = trial
        self._axes: dict[ir.Value, BatchSequenceAxes] = {}
        self._by_row: dict[ir.Node, tuple[int, ...]] = {}
        for value in graph.inputs:
            self.mark_if_leading(value)

    def of(self, value: ir.Value | None) -> BatchSequenceAxes | None:
        """The axes of a value's rows; None if it has none."""
        return None if value is None else self._axes.get(value)

    def row_inputs(self, node: ir.Node) -> tuple[int, ...]:
        """The inputs whose rows are those of the outputs; none if the node mixes rows."""
        return self._by_row.get(node, ())

    def sizes(self, value: ir.Value | None) -> tuple[int, ...] | None:
        return self._trial.sizes(value)

    @property
    def trial(self) -> TrialSizes:
        return self._trial

    def set_output(
        self, node: ir.Node, output: int, axes: BatchSequenceAxes, inputs: Sequence[int]
    ) -> None:
        """Declare that rows of these inputs are those of an output."""
        self._axes[node.outputs[output]] = axes
        self._by_row[node] = tuple(inputs)

    def mark_if_leading(self, value: ir.Value) -> None:
        """A value of shape (batch, time, ...) has rows, wherever it comes from."""
        sizes = self.sizes(value)
        if sizes is not None and sizes[:2] == (self._trial.batch, self._trial.time):
            self._axes.setdefault(value, LEADING)

    def visit(self, node: ir.Node) -> None:
        """Find the rows of a node's outputs; its inputs were visited before."""
        rule = _rule(node)
        if rule is not None and not any(
            self.sizes(v) is None for v in (*node.inputs, *node.outputs) if v is not None and v.name
        ):
            found = rule(node, self)
            if found is not None:
                axes, inputs = found
                for output in node.outputs:
                    if output.name and self._fits(output, axes):
                        self._axes[output] = axes
                named = [y for y in node.outputs if y.name]
                if all(self._axes.get(y) == axes for y in named):
                    self._by_row[node] = inputs
        for output in node.outputs:
            if output.name and output not in self._axes:
                self.mark_if_leading(output)

    def _fits(self, value: ir.Value, axes: BatchSequenceAxes) -> bool:
        sizes = self.sizes(value) or ()
        batch, time = self._trial.batch, self._trial.time
        if max(axes.batch, axes.time) >= len(sizes):
            return False
        if axes.count == 1:
            return sizes[axes.batch] == batch * time
        return (sizes[axes.batch], sizes[axes.time]) == (batch, time)


Found = tuple[BatchSequenceAxes, tuple[int, ...]] | None
Rule = Callable[[ir.Node, RowAxes], Found]


def _rule(node: ir.Node) -> Rule | None:
    if node.domain:
        return None
    if node.op_type in _ELEMENTWISE:
        return _elementwise
    if node.op_type in _RESHAPES:
        return _reshaped
    if node.op_type in REDUCTIONS:
        return _reduced
    if node.op_type in _NORMS:
        return _normalized
    if node.op_type in _ALONG_AXIS:
        return _along_axis
    return _RULES.get(node.op_type)


def _sizes(rows: RowAxes, value: ir.Value | None) -> tuple[int, ...]:
    return rows.sizes(value) or ()


def _elementwise(node: ir.Node, rows: RowAxes) -> Found:
    """Rows of all inputs must be at the same place, aligned at the last axis."""
    rank = len(_sizes(rows, node.outputs[0]))
    given = node.inputs[:1] if node.op_type == "Dropout" else node.inputs
    found: set[BatchSequenceAxes] = set()
    inputs = []
    for i, value in enumerate(given):
        axes = rows.of(value)
        if axes is not None:
            found.add(axes.shifted(rank - len(_sizes(rows, value))))
            inputs.append(i)
    return (found.pop(), tuple(inputs)) if len(found) == 1 else None


def _reshaped(node: ir.Node, rows: RowAxes) -> Found:
    """An axis keeps its rows if the sizes before it have the same product, and so has its own."""
    x, y = node.inputs[0], node.outputs[0]
    axes = rows.of(x)
    if axes is None or not _sizes(rows, y):
        return None
    before, after = _sizes(rows, x), _sizes(rows, y)
    batch, time = rows.trial.batch, rows.trial.time
    if (axes.count == 2 and axes.time == axes.batch + 1) or axes.count == 1:
        start = math.prod(before[: axes.batch])
        joined = _axis_at(after, start, batch * time)
        if joined is not None:
            return BatchSequenceAxes(joined, joined), (0,)
        first = _axis_at(after, start, batch)
        if first is not None and first + 1 < len(after) and after[first + 1] == time:
            return BatchSequenceAxes(first, first + 1), (0,)
        if axes.count == 1:
            return None
    first = _axis_at(after, math.prod(before[: axes.batch]), batch)
    second = _axis_at(after, math.prod(before[: axes.time]), time)
    if first is None or second is None or first == second:
        return None
    return BatchSequenceAxes(first, second), (0,)


def _axis_at(sizes: Sequence[int], start: int, size: int) -> int | None:
    """The axis of this size before which sizes have the product `start`."""
    for axis, each in enumerate(sizes):
        if each == size and math.prod(sizes[:axis]) == start:
            return axis
    return None


def _reduced(node: ir.Node, rows: RowAxes) -> Found:
    """Reductions over other axes."""
    x = node.inputs[0]
    axes, rank = rows.of(x), len(_sizes(rows, x))
    named = attribute(node, "axes") or ints(input_of(node, 1))
    if axes is None or not named:
        return None
    over = {axis % rank for axis in named}
    if over & {axes.batch, axes.time}:
        return None
    if attribute(node, "keepdims", 1):
        return axes, (0,)
    batch, time = (a - sum(o < a for o in over) for a in (axes.batch, axes.time))
    return BatchSequenceAxes(batch, time), (0,)


def _normalized(node: ir.Node, rows: RowAxes) -> Found:
    """LayerNormalization: over the axes from `axis` on."""
    x = node.inputs[0]
    axes, rank = rows.of(x), len(_sizes(rows, x))
    first = attribute(node, "axis", -1) % max(rank, 1)
    weights = [rows.of(value) for value in node.inputs[1:]]
    if axes is None or first <= max(axes.batch, axes.time) or any(weights):
        return None
    return axes, (0,)


def _along_axis(node: ir.Node, rows: RowAxes) -> Found:
    """Operators along one axis, which is not one of the rows."""
    x = node.inputs[0]
    axes, rank = rows.of(x), len(_sizes(rows, x))
    axis = attribute(node, "axis", -1 if node.op_type != "Split" else 0) % max(rank, 1)
    return None if axes is None or axis in (axes.batch, axes.time) else (axes, (0,))


def _matmul(node: ir.Node, rows: RowAxes) -> Found:
    """x w, with a weight of two axes"""
    x, w = node.inputs
    axes, rank = rows.of(x), len(_sizes(rows, x))
    if axes is None or rows.of(w) is not None or len(_sizes(rows, w)) != 2:
        return None
    return None if rank - 1 in (axes.batch, axes.time) else (axes, (0,))


def _gemm(node: ir.Node, rows: RowAxes) -> Found:
    """x w + c, with rows along the first axis of x"""
    x, w, c = (input_of(node, i) for i in range(3))
    if rows.of(x) != MERGED or rows.of(w) is not None or attribute(node, "transA", 0):
        return None
    sizes = _sizes(rows, c)
    if rows.of(c) is not None or (len(sizes) == 2 and sizes[0] != 1):
        return None
    return MERGED, (0,)


def _gather(node: ir.Node, rows: RowAxes) -> Found:
    """Rows of a table, by rows of indices; or columns of rows"""
    x, indices = node.inputs
    axes, rank = rows.of(x), len(_sizes(rows, x))
    axis = attribute(node, "axis", 0) % max(rank, 1)
    if axes is None:
        found = rows.of(indices)
        return (found, (1,)) if found is not None and axis == 0 else None
    if rows.of(indices) is not None or axis <= max(axes.batch, axes.time):
        return None
    return axes, (0,)


def _transposed(node: ir.Node, rows: RowAxes) -> Found:
    x = node.inputs[0]
    axes, rank = rows.of(x), len(_sizes(rows, x))
    order = list(attribute(node, "perm") or reversed(range(rank)))
    if axes is None:
        return None
    return BatchSequenceAxes(order.index(axes.batch), order.index(axes.time)), (0,)


def _sliced(node: ir.Node, rows: RowAxes) -> Found:
    """Slices of other axes"""
    x = node.inputs[0]
    axes, rank = rows.of(x), len(_sizes(rows, x))
    along = ints(input_of(node, 3))
    if axes is None or along is None:
        return None
    cut = {axis % rank for axis in along} & {axes.batch, axes.time}
    return None if cut else (axes, (0,))


def _joined(node: ir.Node, rows: RowAxes) -> Found:
    """Concat along another axis"""
    found = {rows.of(value) for value in node.inputs}
    rank = len(_sizes(rows, node.outputs[0]))
    axes = found.pop() if len(found) == 1 else None
    axis = attribute(node, "axis", 0) % max(rank, 1)
    if axes is None or axis in (axes.batch, axes.time):
        return None
    return axes, tuple(range(len(node.inputs)))


def _expanded(node: ir.Node, rows: RowAxes) -> Found:
    x = node.inputs[0]
    axes = rows.of(x)
    if axes is None:
        return None
    return axes.shifted(len(_sizes(rows, node.outputs[0])) - len(_sizes(rows, x))), (0,)


def _rotated(node: ir.Node, rows: RowAxes) -> Found:
    """RotaryEmbedding: (batch, time, size) or (batch, heads, time, size)"""
    axes, rank = rows.of(node.inputs[0]), len(_sizes(rows, node.inputs[0]))
    return (axes, (0,)) if axes == (LEADING if rank == 3 else BatchSequenceAxes(0, 2)) else None


_RULES: Mapping[str, Rule] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Gather": _gather,
    "Transpose": _transposed,
    "Slice": _sliced,
    "Concat": _joined,
    "Expand": _expanded,
    "RotaryEmbedding": _rotated,
}
