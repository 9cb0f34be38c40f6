"""Bodies: the graphs inside a node, copied, so that their reverse can be written behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onward.gradients.backward import Found, backward, is_differentiable
from onward.gradients.gradient_ops import GradientOps
from onward.graph.initializer_names import rename
from onward.graph.scopes import bodies, reads


def captures(op: GradientOps, node: ir.Node) -> list[ir.Value]:
    """The values that a node's bodies read from outside and that a gradient is wanted of."""
    inside = {v for body in bodies(node) for v in _everything(body)}
    return [v for v in _reads_of_bodies(node) if v in op.active and v not in inside]


def _reads_of_bodies(node: ir.Node) -> list[ir.Value]:
    found: dict[ir.Value, None] = {}
    for body in bodies(node):
        for inner in body:
            found.update(dict.fromkeys(reads(inner)))
        found.update(dict.fromkeys(body.outputs))
    return list(found)


def _everything(body: ir.Graph) -> set[ir.Value]:
    """Every value that lives in a body or in a body of one of its nodes."""
    values = {*body.inputs, *body.initializers.values()}
    for node in body:
        values.update(node.outputs)
        for deeper in bodies(node):
            values |= _everything(deeper)
    return values


def written_out(op: GradientOps, body: ir.Graph, *inputs: ir.Value) -> list[ir.Value]:
    """A body's nodes written into the graph itself, reading these inputs; what they return."""
    known = dict(zip(body.inputs, inputs))
    for value in body.initializers.values():
        assert value.const_value is not None
        known[value] = op.constant(value.const_value.numpy())
    for node in body:
        if bodies(node):
            raise ValueError(f"its body holds a body: {node.op_type}")
        given = [None if x is None else known.get(x, x) for x in node.inputs]
        made = op.node(
            node.op_type,
            given,
            dict(node.attributes),
            outputs=len(node.outputs),
            domain=node.domain,
        )
        known.update(zip(node.outputs, [made] if isinstance(made, ir.Value) else made))
    return [known.get(value, value) for value in body.outputs]


class Body:
    """A body's forward part, copied into a graph that its reverse is then written into."""

    def __init__(self, op: GradientOps, original: ir.Graph) -> None:
        self._copy = original.clone(allow_outer_scope_values=True)
        pairs = [*zip(original.inputs, self._copy.inputs)]
        self._twins: dict[ir.Value, ir.Value] = dict(pairs)
        self.outputs = list(self._copy.outputs)
        self._rename(op, self._copy)
        self._graph = self._copy
        self.op = op.inside(self._graph)
        self._nodes = list(self._copy)
        self._inputs: list[ir.Value] = []
        self._bound: dict[ir.Value, ir.Value] = {}

    def _rename(self, op: GradientOps, graph: ir.Graph) -> None:
        """Names in a copy are its own: no scope may hide another's."""
        for value in (*graph.inputs, *list(graph.initializers.values())):
            rename(value, op.name("copy"))
        for node in graph:
            node.name = op.name(node.op_type)
            for value in node.outputs:
                if value.name:
                    value.name = op.name(node.op_type)
            for body in bodies(node):
                self._rename(op, body)

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int]) -> ir.Value:
        value = ir.val(self.op.name(name), dtype=dtype, shape=ir.Shape(shape))
        self._inputs.append(value)
        return value

    def like(self, value: ir.Value, typed: ir.Value) -> ir.Value:
        """A new input of the backward body that has a value's type and shape."""
        kind = value.type if value.type is not None else typed.type
        shape = value.shape if value.shape is not None else typed.shape
        made = ir.val(self.op.name("state"), type=kind, shape=shape)
        self._inputs.append(made)
        return made

    def bind(self, values: Mapping[ir.Value, ir.Value]) -> None:
        """Let these stand for the original body's inputs."""
        for original, value in values.items():
            twin = self._twins[original]
            if value.shape is None:
                value.shape = original.shape
            if value.type is None:
                value.type = original.type
            twin.replace_all_uses_with(value)
            self.outputs = [value if output is twin else output for output in self.outputs]
            self._bound[original] = value
        made = list(self._graph)[len(self._nodes) :]
        if self._nodes:  # what made them comes before what reads them
            self._graph.remove(made)
            self._graph.insert_before(self._nodes[0], made)

    def at(self, original: ir.Value) -> ir.Value:
        """What stands for one of the original body's inputs."""
        return self._bound[original]

    def backward(
        self, seeds: Sequence[tuple[ir.Value, ir.Value | None]], wrt: Sequence[ir.Value]
    ) -> Found:
        """The reverse of the copied nodes."""
        given: dict[ir.Value, ir.Value] = {}
        for output, dy in seeds:
            if dy is not None and is_differentiable(output):
                given[output] = self.op.total([given[output], dy]) if output in given else dy
        return backward(self.op, self._nodes, given, wrt)

    def forward(self, carried: int) -> ir.Graph:
        """The copy as it is, of a Loop: the condition and what it carries, nothing else."""
        del self._graph.outputs[1 + carried :]
        return self._graph

    def finish(self, outputs: Sequence[ir.Value]) -> ir.Graph:
        """The backward body: its new inputs, and these outputs, each of them made inside it."""
        self._graph.inputs.clear()
        self._graph.inputs.extend(self._inputs)
        self._graph.outputs.clear()
        inside = {value for node in self._graph for value in node.outputs}
        for value in outputs:
            seen = value in list(self._graph.outputs)
            own = value if value in inside and not seen else self.op.Identity(value)
            self._graph.outputs.append(own)
        return self._graph
