"""Infer the types and shapes of one node's outputs, without serialising a model.

Graphs under construction do this for each node.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from onward.graph.protos import from_type_proto, holds_map, shape_from_type_proto, to_type_proto
from onward.graph.shapes.fast import infer_fast
from onward.graph.shapes.ml_operators import infer_ml
from onward.graph.shapes.substitutes import like_first
from onward.message_text import first_line

_INFERENCE_ERRORS = (
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    RuntimeError,
)
_MOST_DATA = 64  # elements: the inference gets shapes and axes, not weights


def infer_outputs(node: ir.Node, schema: onnx.defs.OpSchema) -> None:
    """Write what ONNX infers onto the node's outputs; an invalid node raises ValueError."""
    if infer_fast(node) or infer_ml(node):
        return
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for value in node.inputs:
        if value is None:
            continue
        if value.type is None:
            return  # it comes from an operator that ONNX does not know
        types[str(value.name)] = type_proto(value)
        tensor = value.const_value
        if tensor is not None and tensor.size <= _MOST_DATA:
            data[str(value.name)] = onnx.numpy_helper.from_array(tensor.numpy())
    try:
        found = onnx.shape_inference.infer_node_outputs(schema, _proto(node, schema), types, data)
    except _INFERENCE_ERRORS as error:
        raise ValueError(f"{node.op_type}: {first_line(error)}") from error
    for output in node.outputs:
        kind = found.get(str(output.name))
        if kind is not None:
            clear_wrong_sizes(node, kind)
            output.type = from_type_proto(kind) or output.type
            shape = shape_from_type_proto(kind)
            output.shape = output.shape if shape is None else shape  # of a Loop nothing is found
    if node.op_type in ("Reshape", "Expand") and node.outputs[0].shape is None:
        node.outputs[0].shape = _requested_rank(node)
    first = node.inputs[0] if node.inputs else None
    for output in like_first(node):
        if first is not None and output.shape is None:
            output.type, output.shape = output.type or first.type, first.shape


def clear_wrong_sizes(node: ir.Node, kind: onnx.TypeProto) -> None:
    """Clear sizes that ONNX infers wrongly: unknown ones of Attention's outputs as 0.

    And it gives MaxUnpool no axes at all if the output's shape is an input.
    """
    x = node.inputs[0] if node.inputs else None
    if node.op_type == "MaxUnpool" and len(node.inputs) > 2 and x is not None:
        kind.tensor_type.ClearField("shape")
        for _ in x.shape or ():
            kind.tensor_type.shape.dim.add()
        return
    known = [list(x.shape) for x in node.inputs if x is not None and x.shape is not None]
    if node.op_type != "Attention" or any(0 in sizes for sizes in known):
        return
    for dim in kind.tensor_type.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value == 0:
            dim.Clear()


def _requested_rank(node: ir.Node) -> ir.Shape | None:
    """As many unknown sizes as the requested shape has elements; Expand may have more."""
    x, wanted = node.inputs[:2]
    if wanted is None or wanted.shape is None or not isinstance(wanted.shape[0], int):
        return None
    count = wanted.shape[0]
    if node.op_type == "Expand":
        if x is None or x.shape is None:
            return None
        count = max(count, len(x.shape))
    return ir.Shape([None] * count)


def type_proto(value: ir.Value) -> onnx.TypeProto:
    """A value's type and shape as ONNX writes them."""
    if not isinstance(value.type, ir.TensorType):
        return _other_type_proto(value)
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


def _other_type_proto(value: ir.Value) -> onnx.TypeProto:
    """The same for sequences, optionals and maps."""
    if holds_map(value.type):
        assert value.type is not None
        return to_type_proto(value.type)
    return ir.to_proto(value).type


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
