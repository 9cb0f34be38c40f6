"""Repeat forward nodes in the backward pass, each right before the first use of its results."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onward.graph.dtypes import FLOATS
from onward.graph.scopes import COMPOSITES
from onward.passes.drop_unused import drop_unused
from onward.passes.memory_functions import RUN_AFTER, is_barrier, register_memory_function
from onward.passes.rewrite import Names, copy_node
from onward.programs.memory.forward_backward import ForwardBackward, sources
from onward.programs.memory.schedule import ScheduledNode, make_schedule
from onward.programs.memory.train_sizes import COPY_OF, node_key

RESTORES = "onward.restores"  # metadata of a call: the value whose stashed form it restores


def repeat_nodes(
    model: ir.Model,
    parts: ForwardBackward,
    saved: Collection[ir.Value],
    separate: Collection[ir.Node] = (),
) -> int:
    """Let the backward read copies of forward values whose storages are not saved, in place.

    Returns how many nodes were copied. Calls in `separate` are backward nodes whose body repeats
    what a forward call computes: engines that inline both must not merge them.
    """
    writer = _CopyWriter(model, parts)
    for step in make_schedule(parts, saved):
        writer.write(step, is_separate=step.node in separate)
    return writer.count


def without_copies(train: ir.Model) -> ir.Model:
    """A copy of a train graph in which every forward node runs once, and all values wait."""
    model = train.clone()
    makers = {node_key(node): node for node in model.graph}
    values = {str(value.name): value for node in model.graph for value in node.outputs}
    for node in model.graph:
        if is_barrier(node) and node.inputs[0] is not None:
            ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])
        elif RESTORES in node.metadata_props:
            ir.convenience.replace_all_uses_with(
                node.outputs[0], values[node.metadata_props[RESTORES]]
            )
        elif COPY_OF in node.metadata_props:
            original = makers[node.metadata_props[COPY_OF]]
            for old, new in zip(node.outputs, original.outputs):
                ir.convenience.replace_all_uses_with(old, new)
    return drop_unused(model)


class _CopyWriter:
    """Writes the steps of a schedule into its graph, in order."""

    def __init__(self, model: ir.Model, parts: ForwardBackward) -> None:
        self._model, self._graph, self._parts = model, model.graph, parts
        self._names = Names(model)
        self._copies: dict[ir.Value, ir.Value] = {}
        self._depths: dict[ir.Value, int] = {}
        self._token: ir.Value | None = None  # the value at the end of the longest chain so far
        self.count = 0

    def write(self, step: ScheduledNode, *, is_separate: bool) -> None:
        replaced = {value: self._copies[value] for value, again in step.reads if again}
        if step.again:
            self._repeat(step, replaced)
            return
        node = step.node
        for index, value in enumerate(node.inputs):
            if value is not None and value in replaced:
                node.replace_input_with(index, replaced[value])
        if is_separate and not replaced:
            place = self._barrier_index(node)
            given = None if place is None else node.inputs[place]
            if place is not None and given is not None:
                node.replace_input_with(place, self._after(given, node))
        self._follow(node)

    def _follow(self, node: ir.Node) -> None:
        """Note that a node ran: copies that come later run after its results."""
        depth = 1 + max((self._depths.get(value, 0) for value in sources(node)), default=0)
        for value in node.outputs:
            self._depths[value] = depth
            deepest = self._depths.get(self._token, 0) if self._token is not None else 0
            if value.name and value.dtype in FLOATS and depth > deepest:
                self._token = value

    def _repeat(self, step: ScheduledNode, replaced: dict[ir.Value, ir.Value]) -> None:
        node = step.node
        inputs = [value if value is None else replaced.get(value, value) for value in node.inputs]
        index = None if replaced else self._barrier_index(node)
        given = None if index is None else inputs[index]
        if index is not None and given is not None:
            inputs[index] = self._after(given, step.before)
        copy = copy_node(node, inputs, self._names, "again")
        copy.metadata_props.update({**node.metadata_props, COPY_OF: node_key(node)})
        self._copies.update(zip(node.outputs, copy.outputs))
        self._graph.insert_before(step.before, copy)
        self.count += 1

    def _barrier_index(self, node: ir.Node) -> int | None:
        """The input of a node that waits for the backward: a forward value, else any."""
        given = [i for i, v in enumerate(node.inputs) if v is not None and v.const_value is None]
        made = [i for i in given if node.inputs[i] in self._parts.place]
        return next(iter((*made, *given)), None)

    def _after(self, value: ir.Value, before: ir.Node) -> ir.Value:
        """A value that is available only after the backward has come here.

        Without it, engines would merge a copy with its original, or run it early.
        """
        if self._token is None:
            return value
        register_memory_function(self._model, RUN_AFTER)
        node = ir.Node(
            COMPOSITES,
            RUN_AFTER,
            [value, self._token],
            name=self._names.fresh(f"{value.name}/{RUN_AFTER}"),
        )
        result = node.outputs[0]
        result.name = self._names.fresh(f"{value.name}/later")
        result.type, result.shape = value.type, value.shape
        self._graph.insert_before(before, node)
        return result
