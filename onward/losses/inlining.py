"""Append the graph of a loss model to a model, and connect its inputs by name."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.files import Source, load
from onward.graph.graph_ops import GraphOps
from onward.graph.initializer_names import rename
from onward.graph.scopes import bodies
from onward.graph.shapes.node_inference import infer_outputs
from onward.losses.loss import Loss, Values, agree, find, shown, sizes_of
from onward.passes.downgrade import lower_opset
from onward.passes.pipelines import PREPARE


def inline(op: GraphOps, loss: Loss, source: Source, values: Values) -> ir.Value:
    """Append a model's nodes to op's graph, in its opset; return the model's first output."""
    model = PREPARE(load(source, any_domain=True).clone())
    if model.opset_imports[""] > op.opset():
        model = lower_opset(model, op.opset())
    graph = model.graph
    if not graph.outputs:
        raise OptionError("the model of Graph has no outputs: its first one is the loss")
    result, dims = graph.outputs[0], _Dims(op)
    graph.outputs.clear()
    for value in list(graph.inputs):
        found = _bound(op, loss, values, value, dims)
        if found is not None:
            value.replace_all_uses_with(found)
            result = found if result is value else result
    graph.inputs.clear()
    for name in list(graph.initializers):
        value = graph.initializers.pop(name)
        rename(value, op.name(name))
        op.graph.register_initializer(value)
    for domain, version in model.opset_imports.items():
        op.graph.opset_imports.setdefault(domain, version)
    for node in list(graph):
        graph.remove(node)
        _rename(op, node)
        op.graph.append(node)
        _infer(op, node, dims)
    return result


def _bound(
    op: GraphOps, loss: Loss, values: Values, value: ir.Value, dims: _Dims
) -> ir.Value | None:
    """The value for an input: one of the model, a new input, or None for its default."""
    known = find(op, values, str(value.name))
    if known is None and value.is_initializer():
        return None
    if known is None:
        assert value.dtype is not None
        if value.shape is None:
            raise OptionError(
                f"input {value.name!r} of the model of Graph has no shape\n"
                "give it one: it becomes an input of the model that is trained"
            )
        return op.input(str(value.name), value.dtype, dims.sizes(value))
    unknown = value.shape is None or known.shape is None
    alike = unknown or agree(sizes_of(value), sizes_of(known))
    if value.dtype != known.dtype or not alike:
        raise OptionError(
            f"input {value.name!r} of the model of Graph is {_kind(value)}, "
            f"but the model's value of that name is {_kind(known)}"
        )
    dims.learn(value, known)
    return known


def _kind(value: ir.Value) -> str:
    kind = value.dtype.name if value.dtype is not None else "of no known type"
    return kind if value.shape is None else f"{kind} of shape {shown(value)}"


class _Dims:
    """The outer model's names or sizes of the symbolic dimensions of the inlined model."""

    def __init__(self, op: GraphOps) -> None:
        self._op = op
        self._names: dict[str, int | str | None] = {}

    def learn(self, value: ir.Value, known: ir.Value) -> None:
        if value.shape is not None and known.shape is not None:
            for name, size in zip(sizes_of(value), sizes_of(known)):
                if isinstance(name, str):
                    self._names.setdefault(name, size)

    def sizes(self, value: ir.Value) -> list[int | str | None]:
        """A value's sizes; an unbound name gets a new name."""
        found: list[int | str | None] = []
        for size in sizes_of(value):
            if isinstance(size, str) and size not in self._names:
                self._names[size] = self._op.name(size)
            found.append(self._names[size] if isinstance(size, str) else size)
        return found


def _rename(op: GraphOps, node: ir.Node) -> None:
    """Give a node, its outputs and its subgraphs new, unused names."""
    node.name = op.name(node.op_type)
    for value in node.outputs:
        if value.name:
            value.name = op.name(value.name)
    for body in bodies(node):
        for name in list(body.initializers):
            value = body.initializers.pop(name)
            rename(value, op.name(name))
            body.register_initializer(value)
        for value in body.inputs:
            if not value.is_initializer():
                value.name = op.name(str(value.name))
        for inner in body:
            _rename(op, inner)


def _infer(op: GraphOps, node: ir.Node, dims: _Dims) -> None:
    """Infer types and shapes again, from the node's new inputs."""
    if bodies(node) or not onnx.defs.has(node.op_type, node.domain):
        for value in node.outputs:
            if value.shape is not None:
                value.shape = ir.Shape(dims.sizes(value))
        return
    for value in node.outputs:
        value.shape = None
    infer_outputs(node, onnx.defs.get_schema(node.op_type, op.opset(node.domain), node.domain))
