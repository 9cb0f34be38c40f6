"""Copies of a node's subgraphs, to which their backward pass is added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onward.gradients.backward import Found, backward, is_differentiable
from onward.gradients.gradient_ops import GradientOps
from onward.graph.initializer_names import rename
from onward.graph.scopes import bodies, reads


def captures(op: GradientOps, node: ir.Node) -> list[ir.Value]:
    """The outer values that a node's subgraphs read and whose gradients are needed."""
    inside = {v for body in bodies(node) for v in _all_values(body)}
    return [v for v in _reads_of_bodies(node) if v in op.active and v not in inside]


def _reads_of_bodies(node: ir.Node) -> list[ir.Value]:
    found: dict[ir.Value, None] = {}
    for body in bodies(node):
        for inner in body:
            found.update(dict.fromkeys(reads(inner)))
        found.update(dict.fromkeys(body.outputs))
    return list(found)


def _all_values(body: ir.Graph) -> set[ir.Value]:
    """Every value of a subgraph and of the subgraphs inside it."""
    values = {*body.inputs, *body.initializers.values()}
    for node in body:
        values.update(node.outputs)
        for deeper in bodies(node):
            values |= _all_values(deeper)
    return values


def inline_subgraph(op: GradientOps, body: ir.Graph, *inputs: ir.Value) -> list[ir.Value]:
    """Copy a subgraph's nodes into op's graph, reading these inputs; return their outputs."""
    known = dict(zip(body.inputs, inputs))
    for value in body.initializers.values():
        assert value.const_value is not None
        known[value] = op.constant(value.const_value.numpy())
    for node in body:
        if bodies(node):
            raise ValueError(f"its subgraph has a node with a subgraph of its own ({node.op_type})")
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


class SubgraphCopy:
    """A copy of a subgraph, to which the backward pass of its nodes is added."""

    def __init__(self, op: GradientOps, original: ir.Graph) -> None:
        self._copy = original.clone(allow_outer_scope_values=True)
        pairs = [*zip(original.inputs, self._copy.inputs)]
        self._copies: dict[ir.Value, ir.Value] = dict(pairs)
        self.outputs = list(self._copy.outputs)
        self._rename(op, self._copy)
        self._graph = self._copy
        self.op = op.inside(self._graph)
        self._nodes = list(self._copy)
        self._inputs: list[ir.Value] = []
        self._bound: dict[ir.Value, ir.Value] = {}

    def _rename(self, op: GradientOps, graph: ir.Graph) -> None:
        """Give new names to all values: no scope may hide a name of another."""
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
        """A new input of the backward subgraph, with a value's type and shape."""
        kind = value.type if value.type is not None else typed.type
        shape = value.shape if value.shape is not None else typed.shape
        made = ir.val(self.op.name("state"), type=kind, shape=shape)
        self._inputs.append(made)
        return made

    def bind(self, values: Mapping[ir.Value, ir.Value]) -> None:
        """Replace the inputs of the original subgraph by these values."""
        for original, value in values.items():
            copy = self._copies[original]
            if value.shape is None:
                value.shape = original.shape
            if value.type is None:
                value.type = original.type
            copy.replace_all_uses_with(value)
            self.outputs = [value if output is copy else output for output in self.outputs]
            self._bound[original] = value
        made = list(self._graph)[len(self._nodes) :]
        if self._nodes:  # producers before consumers
            self._graph.remove(made)
            self._graph.insert_before(self._nodes[0], made)

    def at(self, original: ir.Value) -> ir.Value:
        """The value that replaces an input of the original subgraph."""
        return self._bound[original]

    def backward(
        self, seeds: Sequence[tuple[ir.Value, ir.Value | None]], wrt: Sequence[ir.Value]
    ) -> Found:
        """Add the backward pass of the copied nodes."""
        given: dict[ir.Value, ir.Value] = {}
        for output, dy in seeds:
            if dy is not None and is_differentiable(output):
                given[output] = self.op.total([given[output], dy]) if output in given else dy
        return backward(self.op, self._nodes, given, wrt)

    def forward(self, carried: int) -> ir.Graph:
        """The copy of a Loop's subgraph; it returns only the condition and the carried values."""
        del self._graph.outputs[1 + carried :]
        return self._graph

    def finish(self, outputs: Sequence[ir.Value]) -> ir.Graph:
        """The backward subgraph: its new inputs, and these outputs, each computed inside it."""
        self._graph.inputs.clear()
        self._graph.inputs.extend(self._inputs)
        self._graph.outputs.clear()
        inside = {value for node in self._graph for value in node.outputs}
        for value in outputs:
            seen = value in list(self._graph.outputs)
            own = value if value in inside and not seen else self.op.Identity(value)
            self._graph.outputs.append(own)
        return self._graph
