"""Shapes: what ONNX can infer, written onto the values; symbolic dimensions made fixed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx
import onnx_ir as ir

# Initializers above this many bytes go to ONNX's inference as types alone: they are weights, not
# shapes, and a protobuf message ends at 2 GB.
_LARGEST_SHAPE_DATA = 8192
_LONGEST_SHAPE = 1024  # elements of a vector that may be a shape
_MOST_ROUNDS = 4
_FOLLOWED = {
    *("Add", "Cast", "Concat", "Gather", "MeanVarianceNormalization", "Mul"),
    *("Size", "Slice", "Squeeze", "Sub", "Unsqueeze"),
}


def infer_shapes(model: ir.Model) -> ir.Model:
    """Write the types and shapes that ONNX infers onto every value, subgraphs included.

    What a graph declares for its inputs and outputs stays; operators of unknown domains keep
    what was known about their outputs. An initializer that a feed may override is not a constant.
    """
    hidden = _long_reads(model)
    if hidden or model.functions:
        _infer(model, None)
        hidden = _long_reads(model)
    if model.functions:
        return model  # their bodies may read what is long, out of our sight
    for _ in range(_MOST_ROUNDS):
        _infer(model, hidden)
        before, hidden = hidden, _long_reads(model)
        if hidden == before:
            break
    return model


def _infer(model: ir.Model, hidden: Collection[ir.Node] | None) -> None:
    """One run of ONNX's inference, which follows the data of shapes but where it is hidden."""
    for graph in [model.graph, *model.graph.subgraphs()]:
        for node in graph:
            for value in node.outputs:
                _forget_invented(value)
    proto = ir.to_proto(_skeleton(model))
    if hidden:
        _hide(model.graph, proto.graph, hidden)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=hidden is not None)
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return  # a model that breaks ONNX's rules: whoever runs it says so, with the node
    _merge_graph(model.graph, inferred.graph)


def _forget_invented(value: ir.Value) -> None:
    """Names that an earlier run gave to unknown sizes: this one may find the true ones."""
    if value.shape is None or value.is_graph_output():
        return
    dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    if any(isinstance(dim, str) and dim.startswith("unk__") for dim in dims):
        known = [None if str(dim).startswith("unk__") else dim for dim in dims]
        value.shape = ir.Shape(known)


def _long_reads(model: ir.Model) -> set[ir.Node]:
    """Nodes that would have ONNX write out a vector which is long, or not known to be short.

    Following data, it makes an object of every element of what these operators read; a vector of
    2 ** 50 elements would take the process with it.
    """
    graphs = [model.graph, *model.graph.subgraphs()]
    readers = (node for graph in graphs for node in graph if node.op_type in _FOLLOWED)
    return {node for node in readers if not all(_is_short(value) for value in node.inputs)}


def _is_short(value: ir.Value | None) -> bool:
    if value is None:
        return True
    if value.shape is None:
        return False
    return len(value.shape) != 1 or (
        isinstance(value.shape[0], int) and value.shape[0] <= _LONGEST_SHAPE
    )


def _hide(graph: ir.Graph, proto: onnx.GraphProto, hidden: Collection[ir.Node]) -> None:
    """Give nodes a domain that inference does not know: what was known of them must do."""
    for node, node_proto in zip(graph, proto.node, strict=True):
        if node in hidden:
            node_proto.domain = "onward.hidden"
        for attribute in node_proto.attribute:
            if attribute.HasField("g"):
                _hide(node.attributes[attribute.name].as_graph(), attribute.g, hidden)


def fix_dimensions(
    model: ir.Model, names: Mapping[str, int], denotations: Mapping[str, int] | None = None
) -> ir.Model:
    """Give symbolic dimensions a fixed size, by name (or by denotation), and infer again.

    fix_dimensions(model, {"batch": 4}): x of (batch, 3) becomes (4, 3), and so on downstream.
    """
    sizes = dict(names)
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            denotation = value.shape.get_denotation(axis) if value.shape is not None else None
            if denotation in (denotations or {}):
                size = (denotations or {})[denotation]  # type: ignore[index]
                if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                    sizes[dim.value] = size
                _set_dim(value, axis, size)
    for graph in model.graphs():
        for value in _values(graph):
            for axis, dim in enumerate(value.shape or ()):
                if isinstance(dim, ir.SymbolicDim) and dim.value in sizes:
                    _set_dim(value, axis, sizes[dim.value])
    return infer_shapes(model)


def _skeleton(model: ir.Model) -> ir.Model:
    """The model without its weights: large initializers become inputs. Nothing is copied."""
    graph = model.graph
    constants: list[ir.Value] = []
    weights: list[ir.Value] = []
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and value.type is None:
            value.type = ir.TensorType(tensor.dtype)
        if tensor is not None and value.shape is None:
            value.shape = ir.Shape(tensor.shape)  # type: ignore[arg-type]
        if value.is_graph_input():
            continue
        small = tensor is not None and tensor.nbytes <= _LARGEST_SHAPE_DATA
        (constants if small else weights).append(value)
    view = ir.GraphView(
        inputs=[*graph.inputs, *weights],
        outputs=graph.outputs,
        nodes=graph,
        initializers=constants,
        opset_imports=dict(model.opset_imports),
        name=graph.name or "graph",
    )
    functions = list(model.functions.values())
    return ir.Model(view, ir_version=max(model.ir_version or 4, 4), functions=functions)  # type: ignore[arg-type]


def _merge_graph(graph: ir.Graph, inferred: onnx.GraphProto) -> None:
    """Take over what was inferred, value by name and subgraph by position."""
    found = {info.name: info.type for info in inferred.value_info}
    declared = {*graph.inputs, *graph.outputs}
    for output in inferred.output:
        found[output.name] = output.type
    for node, node_proto in zip(graph, inferred.node, strict=True):
        for value in node.outputs:
            if value.name and value.name in found:
                _merge_value(value, found[value.name], keep=value in declared)
        subgraphs = {a.name: a.g for a in node_proto.attribute if a.HasField("g")}
        for name, subgraph in subgraphs.items():
            body = node.attributes[name].as_graph()
            _type_inputs(node, body)
            _merge_graph(body, subgraph)


def _type_inputs(node: ir.Node, body: ir.Graph) -> None:
    """Give a loop's body the types of what it is called with: ONNX infers but does not say them."""
    given: list[ir.Value | None] = [None] * len(body.inputs)
    if node.op_type == "Loop":
        given[2:] = node.inputs[2:]
        body.inputs[0].type = body.inputs[0].type or ir.TensorType(ir.DataType.INT64)
        body.inputs[1].type = body.inputs[1].type or ir.TensorType(ir.DataType.BOOL)
    if node.op_type == "Scan":
        given = list(node.inputs)
    for inner, outer in zip(body.inputs, given, strict=False):
        if inner.type is None and outer is not None:
            inner.type = outer.type


def _merge_value(value: ir.Value, proto: onnx.TypeProto, *, keep: bool) -> None:
    kind = ir.serde.deserialize_type_proto_for_type(proto)
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    if kind is not None and (value.type is None or not keep):
        value.type = kind
    if shape is None:
        return
    if value.shape is None or (not keep and len(value.shape) != len(shape)):
        value.shape = shape
        return
    if len(value.shape) != len(shape):
        return
    for axis, dim in enumerate(shape):
        ours = value.shape[axis]
        unknown = isinstance(ours, ir.SymbolicDim) and ours.value is None
        if unknown or (not keep and isinstance(dim, int) and dim != ours):
            _set_dim(value, axis, dim)


def _set_dim(value: ir.Value, axis: int, dim: int | ir.SymbolicDim) -> None:
    dims = list(value.shape or ())
    denotations = [value.shape.get_denotation(i) for i in range(len(dims))] if value.shape else []
    dims[axis] = dim
    value.shape = ir.Shape(dims, denotations)  # a shape may be shared or frozen: never in place


def _values(graph: ir.Graph) -> list[ir.Value]:
    made = [value for node in graph for value in node.outputs]
    return [*graph.inputs, *graph.outputs, *graph.initializers.values(), *made]
