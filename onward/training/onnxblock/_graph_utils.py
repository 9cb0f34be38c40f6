"""Look up values and types in a ModelProto, under the names that custom blocks use."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import onnx

_LARGEST_SHAPE_DATA = 8192  # bytes; larger tensors are weights, not shapes
_numbers = itertools.count(1)


def generate_graph_name(token: str) -> str:
    """A unique name for a value."""
    return f"onnx::{token}::{next(_numbers)}"


def get_output_from_output_name(
    onnx_model: onnx.ModelProto, output_name: str
) -> onnx.ValueInfoProto:
    """The graph output of this name."""
    value: onnx.ValueInfoProto
    for value in onnx_model.graph.output:
        if value.name == output_name:
            return value
    raise LookupError(f"The provided output name {output_name} is not a graph output.")


def get_input_from_input_name(onnx_model: onnx.ModelProto, input_name: str) -> onnx.ValueInfoProto:
    """The graph input of this name."""
    value: onnx.ValueInfoProto
    for value in onnx_model.graph.input:
        if value.name == input_name:
            return value
    raise LookupError(f"The provided input name {input_name} is not a graph input.")


def node_arg_exists(model: onnx.ModelProto, node_arg_name: str) -> bool:
    """Whether the graph has an input, a weight or a node's value of this name."""
    graph = model.graph
    return any(node_arg_name == value.name for value in (*graph.input, *graph.initializer)) or any(
        node_arg_name in (*node.input, *node.output) for node in graph.node
    )


def get_value_info(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """Type and shape of any value; inferred where the model does not have them."""
    graph = model.graph
    value: onnx.ValueInfoProto
    for value in (*graph.output, *graph.input, *graph.value_info):
        if value.name == name and value.type.WhichOneof("value") is not None:
            return value
    for value in infer_value_info(model):
        if value.name == name:
            return value
    raise LookupError(f"The provided name {name} is not a value of the graph.")


def infer_value_info(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Types and shapes of all values, inputs and weights included."""
    inferred = onnx.shape_inference.infer_shapes(without_weights(model)).graph
    weights = [
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in inferred.initializer
    ]
    return [*inferred.output, *inferred.input, *inferred.value_info, *weights]


def register_graph_outputs(model: onnx.ModelProto, output_names: Sequence[str] | str) -> None:
    """Make exactly these values the graph's outputs."""
    names = [output_names] if isinstance(output_names, str) else list(dict.fromkeys(output_names))
    known = {value.name: value for value in model.graph.output}
    if not known.keys() >= set(names):
        known = {value.name: value for value in reversed(infer_value_info(model))} | known
    for name in names:
        if name not in known:
            raise LookupError(
                f"The provided name {name} is not a graph value info or a graph output."
            )
    outputs = [onnx.ValueInfoProto.FromString(known[name].SerializeToString()) for name in names]
    del model.graph.output[:]
    model.graph.output.extend(outputs)


def check(model: onnx.ModelProto) -> None:
    """Raise onnx.checker.ValidationError if the model is invalid."""
    if model.graph.node:
        onnx.checker.check_model(without_weights(model))


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with the weights as inputs: small enough for every tool of onnx."""
    return with_inputs(model, {t.name for t in model.graph.initializer if _is_weight(t)})


def with_inputs(model: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    """A copy in which the initializers of these names are inputs, after the existing ones."""
    graph = model.graph
    light = onnx.ModelProto(producer_name=model.producer_name)
    light.ir_version = max(model.ir_version, 4)  # before, every initializer had to be an input
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    light.metadata_props.extend(model.metadata_props)
    light.graph.name = graph.name
    light.graph.node.extend(graph.node)
    moved = [tensor for tensor in graph.initializer if tensor.name in names]
    initializers = {tensor.name for tensor in graph.initializer}
    light.graph.input.extend(value for value in graph.input if value.name not in initializers)
    light.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in moved
    )
    light.graph.initializer.extend(t for t in graph.initializer if t.name not in names)
    light.graph.sparse_initializer.extend(graph.sparse_initializer)
    light.graph.output.extend(graph.output)
    light.graph.value_info.extend(graph.value_info)
    return light


def _is_weight(tensor: onnx.TensorProto) -> bool:
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    return external or tensor.ByteSize() > _LARGEST_SHAPE_DATA
