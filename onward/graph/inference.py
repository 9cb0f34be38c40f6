"""The types and shapes of one node's outputs, as ONNX's own inference says, node by node.

What a graph under construction asks all the time: no model is serialised for it.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

_MOST_DATA = 64  # elements: shapes and axes are told to the inference, weights are not


def infer_outputs(node: ir.Node, schema: onnx.defs.OpSchema) -> None:
    """Write what ONNX infers onto the node's outputs; a node that breaks ONNX's rules raises."""
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for value in node.inputs:
        if value is None or value.type is None:
            continue
        types[str(value.name)] = type_proto(value)
        tensor = value.const_value
        if tensor is not None and tensor.size <= _MOST_DATA:
            data[str(value.name)] = onnx.numpy_helper.from_array(tensor.numpy())
    try:
        found = onnx.shape_inference.infer_node_outputs(schema, _proto(node, schema), types, data)
    except (onnx.shape_inference.InferenceError, RuntimeError) as error:
        raise ValueError(f"{node.op_type}: {str(error).splitlines()[0]}") from error
    for output in node.outputs:
        kind = found.get(str(output.name))
        if kind is not None:
            output.type = ir.serde.deserialize_type_proto_for_type(kind)
            output.shape = ir.serde.deserialize_type_proto_for_shape(kind)


def type_proto(value: ir.Value) -> onnx.TypeProto:
    """A value's type and shape as ONNX writes them."""
    if not isinstance(value.type, ir.TensorType):
        return ir.to_proto(value).type
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = int(value.type.dtype)
    if value.shape is not None:
        proto.tensor_type.shape.SetInParent()
        for size in value.shape:
            dim = proto.tensor_type.shape.dim.add()
            if isinstance(size, int):
                dim.dim_value = size
            elif size.value is not None:
                dim.dim_param = size.value
    return proto


def _proto(node: ir.Node, schema: onnx.defs.OpSchema) -> onnx.NodeProto:
    """The node's message, with the schema's defaults: onnx's STFT takes an absent one for 0."""
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    proto.input.extend("" if value is None else str(value.name) for value in node.inputs)
    proto.output.extend(str(value.name) for value in node.outputs)
    for name, formal in schema.attributes.items():
        if name in node.attributes:
            proto.attribute.append(_attribute(name, node.attributes[name]))
        elif formal.default_value.type:
            proto.attribute.append(formal.default_value)
    return proto


def _attribute(name: str, attribute: ir.Attr) -> onnx.AttributeProto:
    if attribute.type in _PLAIN:
        return onnx.helper.make_attribute(name, attribute.value, attr_type=int(attribute.type))
    made: Any = ir.to_proto(attribute)
    return made  # type: ignore[no-any-return]


_PLAIN = {
    ir.AttributeType.INT,
    ir.AttributeType.INTS,
    ir.AttributeType.FLOAT,
    ir.AttributeType.FLOATS,
    ir.AttributeType.STRING,
}
