"""Compact a batch at each exit: rows that are sure leave, the others go on, results are merged.

sure = confidence(scores_i) >= threshold_i
rows = NonZero(not sure)
x'   = Gather(x, rows, axis=batch)              for every value that the rest of the network reads
y    = ScatterND(scores_i, rows, rest(x'))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.compress.early_exits.batch_facts import INDEPENDENT, BatchFacts, shape_derived
from onward.errors import UnsupportedModel
from onward.graph.graph_ops import GraphOps, extend
from onward.graph.scopes import ancestors, bodies, reads, walk
from onward.graph.shapes.infer import infer_missing
from onward.passes.drop_unused import drop_unused

EXIT_OUTPUT = "exit"

# (op, the value at the exit, the exit's number) -> scores, confidence, threshold
BuildHead = Callable[[GraphOps, ir.Value, int], tuple[ir.Value, ir.Value, ir.Value]]


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The parts of a network between exits.

    Attributes:
        cuts: the values at which exits are, in the order of the graph
        scores: the value that exits answer: all parts end there
        of: the part of each node; nodes that come after `scores` are not in it
    """

    cuts: Sequence[ir.Value]
    scores: ir.Value
    of: dict[ir.Node, int]

    def of_value(self, value: ir.Value) -> int:
        """The part that makes a value; inputs and weights: the first one."""
        node = value.producer()
        return 0 if node is None else self.of.get(node, 0)


def divide(graph: ir.Graph, cuts: Iterable[ir.Value], scores: ir.Value) -> Stages:
    """Divide a graph at the exits; refuse outputs that an exit could not answer."""
    place = {value: number for number, node in enumerate(graph) for value in node.outputs}
    ordered = sorted(cuts, key=lambda value: place[value])
    needed = ancestors(graph, [scores])
    for cut in ordered:
        if cut not in needed or cut is scores:
            raise UnsupportedModel(
                f"the output {scores.name!r} is not computed from {cut.name!r}\n"
                "name inner values that lead to it"
            )
    parts = [*(ancestors(graph, [cut]) for cut in ordered), needed]
    stage_of: dict[ir.Node, int] = {}
    for node in graph:
        for number, values in enumerate(parts):
            if any(value in values for value in node.outputs):
                stage_of[node] = number
                break
    stages = Stages(cuts=ordered, scores=scores, of=stage_of)
    _check_other_outputs(graph, stages)
    return stages


def _check_other_outputs(graph: ir.Graph, stages: Stages) -> None:
    """Nodes behind the scores, and outputs, may read the scores and what all rows have."""
    outside = [node for node in graph if node not in stages.of]
    read = {value for node in outside for value in reads(node)} | set(graph.outputs)
    for value in read - {stages.scores}:
        if stages.of_value(value) > 0:
            raise UnsupportedModel(
                f"{value.name!r} is needed for an output of the model, and rows that leave at "
                f"{stages.cuts[0].name!r} never compute it\n"
                "remove that output from the model, or put the exits behind it"
            )


def crossing_values(graph: ir.Graph, stages: Stages) -> set[str]:
    """Names of values whose batch axis must be known: read in a later part, or for their shape."""
    found = {str(cut.name) for cut in stages.cuts} | {str(stages.scores.name)}
    for node, stage in stages.of.items():
        for value in reads(node):
            if stages.of_value(value) < stage or node.op_type == "Shape":
                found.add(str(value.name))
    return found


class Compaction:
    """Writes the compaction of one model; used once."""

    def __init__(
        self, model: ir.Model, stages: Stages, facts: BatchFacts, *, keep_one: bool
    ) -> None:
        self._model, self._stages, self._facts = model, stages, facts
        self._keep_one = keep_one
        self._op = extend(model)
        self._from_shapes = shape_derived(list(model.graph))
        self._rows: list[ir.Value] = []  # of each exit: the numbers of the rows that go on
        self._views: dict[tuple[ir.Value, int], ir.Value] = {}
        self._shape = stages.scores.shape

    def write(self, build_head: BuildHead, *, exit_output: bool) -> None:
        """Insert the exits in place."""
        op, stages, graph = self._op, self._stages, self._model.graph
        readers = [node for node in graph if stages.of.get(node, 0) > 0]
        answers, stays = [], []
        for number, cut in enumerate(stages.cuts):
            scores, confidence, threshold = build_head(op, self._view(cut, number), number)
            stay = self._keep(op.Not(op.GreaterOrEqual(confidence, threshold)))  # NaN goes on
            answers.append(scores)
            stays.append(stay)
            self._rows.append(op.Reshape(op.NonZero(stay), [-1]))
        for node in readers:
            self._compact_inputs(node, stages.of[node])
        for node in readers:  # their shapes had the whole batch, and engines plan with them
            for inner in (node, *(n for body in bodies(node) for n in walk(body))):
                for value in inner.outputs:
                    value.shape = None
        merged = self._merge(answers)
        self._replace_scores(merged)
        if exit_output:
            self._add_exit_output(stays, merged)
        graph.sort()
        infer_missing(drop_unused(self._model))

    def _keep(self, stay: ir.Value) -> ir.Value:
        """Which rows go on; with `keep_one`, row 0 does if no other does."""
        if not self._keep_one:
            return stay
        op = self._op
        chosen = op.Cast(stay, to=int(ir.DataType.INT32))
        none_stay = op.Equal(op.ReduceMax(chosen, [0], keepdims=1), np.int32(0))
        first = op.Equal(op.arange(op.Shape(stay)), np.int64(0))
        kept: ir.Value = op.Or(stay, op.And(first, none_stay))
        return kept

    def _compact_inputs(self, node: ir.Node, stage: int) -> None:
        if node.op_type == "Shape" and not node.domain:
            source = node.inputs[0]
            if source is not None and self._stages.of_value(source) < stage:
                sizes = self._shape_at(node, stage)
                node.outputs[0].replace_all_uses_with(sizes, replace_graph_outputs=True)
                self._views[node.outputs[0], stage] = sizes
                return
        for inner in (node, *(n for body in bodies(node) for n in walk(body))):
            for place, value in enumerate(inner.inputs):
                if value is not None and self._is_earlier(value, stage):
                    inner.replace_input_with(place, self._view(value, stage))
        for body in bodies(node):
            for place, value in enumerate(body.outputs):
                if self._is_earlier(value, stage):
                    body.outputs[place] = self._view(value, stage)

    def _is_earlier(self, value: ir.Value, stage: int) -> bool:
        if value.is_initializer() or value.graph is not self._model.graph:
            return False
        is_ours = value.producer() is None or value.producer() in self._stages.of
        return is_ours and self._stages.of_value(value) < stage

    def _view(self, value: ir.Value, stage: int) -> ir.Value:
        """A value for the rows that reach a part."""
        if not self._is_earlier(value, stage):
            return value
        if (value, stage) not in self._views:
            self._views[value, stage] = self._make_view(value, stage)
        return self._views[value, stage]

    def _make_view(self, value: ir.Value, stage: int) -> ir.Value:
        axis = self._facts.axis(value)
        if axis == INDEPENDENT:
            return value
        if value in self._from_shapes:
            return self._computed_again(value, stage)
        if axis is None:
            raise UnsupportedModel(
                f"{value.name!r} is read behind the exit at {self._stages.cuts[stage - 1].name!r} "
                "and has no batch axis: its rows cannot be separated\n"
                "put the exit elsewhere, such as behind the node that reads it"
            )
        source = self._view(value, stage - 1)
        view: ir.Value = self._op.Gather(source, self._rows[stage - 1], axis=axis)
        if source.shape is not None:
            sizes = list(source.shape)
            sizes[axis] = ir.SymbolicDim(f"rows_behind_exit_{stage - 1}")
            view.shape = ir.Shape(sizes)
        return view

    def _computed_again(self, value: ir.Value, stage: int) -> ir.Value:
        """A value that is computed from shapes, computed from the shapes of fewer rows."""
        node = value.producer()
        assert node is not None
        if node.op_type == "Shape" and not node.domain:
            return self._shape_at(node, stage)
        inputs = [None if v is None else self._again(v, stage) for v in node.inputs]
        copy = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            list(node.attributes.values()),
            num_outputs=len(node.outputs),
            version=node.version,
        )
        for old, new in zip(node.outputs, copy.outputs):
            new.name, new.type = self._op.name(node.op_type), old.type
            self._views[old, stage] = new
        self._model.graph.append(copy)
        return self._views[value, stage]

    def _again(self, value: ir.Value, stage: int) -> ir.Value:
        return self._view(value, stage) if value in self._from_shapes else value

    def _shape_at(self, node: ir.Node, stage: int) -> ir.Value:
        """Shape(x) with the number of rows of a part in place of the batch."""
        op, source = self._op, node.inputs[0]
        assert source is not None
        axis = self._facts.axis(source)
        sizes: ir.Value = op.Shape(source, **dict(node.attributes))
        if axis == INDEPENDENT:
            return sizes
        if axis is None or source.shape is None:
            raise UnsupportedModel(
                f"the shape of {source.name!r} is read behind an exit, and its batch axis is not "
                "known\nput the exit elsewhere"
            )
        rank = len(source.shape)
        start = node.attributes.get_int("start", 0)
        end = node.attributes.get_int("end", rank)
        taken = list(range(rank))[start:end]
        if axis not in taken:
            return sizes
        mask = np.array([each == axis for each in taken])
        result: ir.Value = op.Where(op.constant(mask), op.Shape(self._rows[stage - 1]), sizes)
        return result

    def _merge(self, answers: Sequence[ir.Value]) -> ir.Value:
        op, result = self._op, self._stages.scores
        for answer, rows in zip(reversed(answers), reversed(self._rows)):
            base = op.cast_like(answer, self._stages.scores)
            result = op.ScatterND(base, op.Unsqueeze(rows, [1]), result)
        return result

    def _replace_scores(self, merged: ir.Value) -> None:
        scores, graph = self._stages.scores, self._model.graph
        first = merged.producer()
        while first is not None and first.inputs[2] is not scores:  # the chain of ScatterND
            assert first.inputs[2] is not None
            first = first.inputs[2].producer()
        for node, place in list(scores.uses()):
            if node is not first:
                node.replace_input_with(place, merged)
        merged.type, merged.shape = scores.type, self._shape
        for place, value in enumerate(graph.outputs):
            if value is scores:
                name = str(scores.name)
                scores.name = self._op.name("scores")
                merged.name = name
                graph.outputs[place] = merged

    def _add_exit_output(self, stays: Sequence[ir.Value], merged: ir.Value) -> None:
        """exit: the number of the exit that each row took; the number of exits: none of them."""
        op, last = self._op, len(stays)
        numbers = op.Where(stays[-1], np.int64(last), np.int64(last - 1))
        for number in reversed(range(last - 1)):
            base = op.Mul(op.Cast(stays[number], to=int(ir.DataType.INT64)), np.int64(0))
            base = op.Add(base, np.int64(number))
            numbers = op.ScatterND(base, op.Unsqueeze(self._rows[number], [1]), numbers)
        numbers.name = EXIT_OUTPUT
        numbers.shape = None if merged.shape is None else ir.Shape([merged.shape[0]])
        self._model.graph.outputs.append(numbers)
