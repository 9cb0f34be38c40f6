"""Find values that nothing reads at rows that are left out, up to the loss.

From the last node to the first: such a value is read only by nodes that work row by row, whose
results are such values themselves; by attention that hides those rows; by a product with zeros; by
a selection of rows that are kept; or by a loss that ignores them. The last two depend on the data
of a batch: they are conditions, which are checked for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from onward.graph.operators import SHAPE_ONLY
from onward.passes.value_facts import Array, attribute, input_of, ints
from onward.programs.derived_feeds import CountedLabels
from onward.programs.sparsity.attention_sites import AttentionSites
from onward.programs.sparsity.row_axes import LEADING, MERGED, BatchSequenceAxes, RowAxes

LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
_LOSS_AXES = (MERGED, BatchSequenceAxes(0, 2))  # (batch * time, classes) or (batch, classes, time)
_FEW = 8  # positions that a model may select
_TO_THE_END = 1 << 30  # ends of slices


@dataclass
class Conditions:
    """What a batch must fulfil, so that rows can be left out."""

    positions: set[int] = field(default_factory=set)
    labels: set[CountedLabels] = field(default_factory=set)

    def add(self, other: Conditions) -> None:
        self.positions |= other.positions
        self.labels |= other.labels


LabelsOf = Callable[[ir.Node], CountedLabels | None]


class UnreadRows:
    """The values of a graph that are not read at rows that are left out.

    `attention` and `tokens` (masks to try) are those of padding; without them, rows are left out by
    their labels. `labels_of` are those of a node that reads only rows whose label counts.
    """

    def __init__(
        self,
        graph: ir.Graph,
        rows: RowAxes,
        labels_of: LabelsOf,
        attention: AttentionSites | None = None,
        mask: ir.Value | None = None,
        tokens: Iterable[Array] = (),
    ) -> None:
        self._graph, self._rows, self._labels_of = graph, rows, labels_of
        self._attention, self._mask, self._tokens = attention, mask, list(tokens)
        self._unread: set[ir.Value] = set()
        self._conditions: dict[ir.Value, Conditions] = {}
        self.readers: dict[ir.Value, ir.Node] = {}  # of other values, a node that reads all rows
        values = [v for node in reversed(graph) for v in node.outputs if v.name]
        for value in (*values, *graph.inputs):
            self._visit(value)

    def __contains__(self, value: ir.Value) -> bool:
        return value in self._unread

    def conditions(self, value: ir.Value) -> Conditions:
        return self._conditions.get(value, Conditions())

    def _visit(self, value: ir.Value) -> None:
        axes = self._rows.of(value)
        if axes is None or (value.is_graph_output() and self._mask is None):
            return
        conditions = Conditions()
        for node, index in value.uses():
            found = self._read(value, axes, node, index)
            if found is None:
                self.readers[value] = node
                return
            conditions.add(found)
        self._unread.add(value)
        self._conditions[value] = conditions

    def _read(
        self, value: ir.Value, axes: BatchSequenceAxes, node: ir.Node, index: int
    ) -> Conditions | None:
        """The conditions under which a node does not read the rows; None: it does."""
        if node.graph is not self._graph:
            return None
        if node.op_type in SHAPE_ONLY and not node.domain:
            return Conditions()
        if index in self._rows.row_inputs(node) and self._are_unread(node.outputs):
            return self._of_outputs(node.outputs)
        if self._attention is not None:
            found = self._read_by_attention(node, index)
            if found is not None:
                return found
        labels = self._labels_of(node) if index == 0 else None
        if labels is not None and axes in _LOSS_AXES:
            return Conditions(labels={labels})
        if self._mask is None:
            return None
        if self._is_multiplied_by_zero(node, index, axes):
            return Conditions()
        positions = selected_positions(node, index, axes, self._rows)
        return None if positions is None else Conditions(positions=positions)

    def _read_by_attention(self, node: ir.Node, index: int) -> Conditions | None:
        assert self._attention is not None
        if self._attention.hides_input(node, index, self._rows, self._unread):
            return Conditions()
        result = self._attention.reads_queries(node, index)
        if result is not None and result in self._unread:
            return self._conditions[result]
        return None

    def _are_unread(self, outputs: Iterable[ir.Value]) -> bool:
        return all(y in self._unread for y in outputs if y.name)

    def _of_outputs(self, outputs: Iterable[ir.Value]) -> Conditions:
        total = Conditions()
        for y in outputs:
            total.add(self._conditions.get(y, Conditions()))
        return total

    def _is_multiplied_by_zero(self, node: ir.Node, index: int, axes: BatchSequenceAxes) -> bool:
        """Mul(x, m) where m is 0 at padding, or Where(m, x, other) where m is false there."""
        if node.domain or axes != LEADING:
            return False
        if node.op_type == "Mul":
            factor, zero = node.inputs[1 - index], 0
        elif node.op_type == "Where" and index in (1, 2):
            factor, zero = node.inputs[0], index == 2
        else:
            return False
        rank = len(self._rows.sizes(node.outputs[0]) or ())
        if factor is None or rank != len(self._rows.sizes(node.inputs[index]) or ()):
            return False
        assert self._mask is not None
        for tokens in self._tokens:
            padded = (tokens == 0).reshape(*tokens.shape, *[1] * (rank - 2))
            for others in (1, 0):
                fed = {str(self._mask.name): tokens}
                array = self._rows.trial.evaluate(factor, fed, others=others)
                if array is None or not ((array == zero) | ~padded).all():
                    return False
        return True


def selected_positions(
    node: ir.Node, index: int, axes: BatchSequenceAxes, rows: RowAxes
) -> set[int] | None:
    """The positions of the sequence that a node selects; None if it does something else.

    Gather(x, 0, axis=1) or Slice(x, [0], [1], [1]): the first token of each sample.
    """
    if node.domain or index != 0 or axes.count == 1:
        return None
    x = node.inputs[0]
    rank = len(rows.sizes(x) or ())
    if node.op_type == "Gather":
        chosen = ints(node.inputs[1])
        if attribute(node, "axis", 0) % rank != axes.time or not chosen or len(chosen) > _FEW:
            return None
        return set(chosen)
    if node.op_type != "Slice":
        return None
    starts, ends, along, steps = (ints(input_of(node, place)) for place in range(1, 5))
    if starts is None or ends is None or along is None or (steps is not None and steps != [1]):
        return None
    if len(along) != 1 or along[0] % rank != axes.time:
        return None
    start, end = starts[0], ends[0]
    if start < 0 and end > _TO_THE_END:
        end = 0
    if not 0 < end - start <= _FEW or (start < 0 < end):
        return None
    return set(range(start, end))
