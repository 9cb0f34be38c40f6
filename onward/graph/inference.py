"""The types and shapes of one node's outputs, as ONNX's own inference says, node by node.

What a graph under construction asks all the time: no model is serialised for it.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from onward.graph.stand_ins import like_first

# Operators that compute element by element, and take every float type.
_ELEMENTWISE = frozenset(
    (
        *("Abs", "Add", "Ceil", "Cos", "Div", "Erf", "Exp", "Floor", "Identity", "Log", "Mul"),
        *("Neg", "Reciprocal", "Relu", "Sigmoid", "Sign", "Sin", "Sqrt", "Sub", "Sum", "Tanh"),
    )
)
_FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
_MOST_DATA = 64  # elements: shapes and axes are told to the inference, weights are not


def infer_outputs(node: ir.Node, schema: onnx.defs.OpSchema) -> None:
    """Write what ONNX infers onto the node's outputs; a node that breaks ONNX's rules raises."""
    if node.op_type in _ELEMENTWISE and _like_the_widest(node):
        return
    if node.op_type in _SIMPLE and _simple(node):
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
    except (onnx.shape_inference.InferenceError, RuntimeError) as error:
        raise ValueError(f"{node.op_type}: {str(error).splitlines()[0]}") from error
    for output in node.outputs:
        kind = found.get(str(output.name))
        if kind is not None:
            forget_false_sizes(node, kind)
            output.type = ir.serde.deserialize_type_proto_for_type(kind)
            output.shape = ir.serde.deserialize_type_proto_for_shape(kind)
    if node.op_type in ("Reshape", "Expand") and node.outputs[0].shape is None:
        node.outputs[0].shape = _of_asked_rank(node)
    first = node.inputs[0] if node.inputs else None
    for output in like_first(node):
        if first is not None and output.shape is None:
            output.type, output.shape = output.type or first.type, first.shape


def _like_the_widest(node: ir.Node) -> bool:
    """Floats of one type, each with the widest one's sizes or with ones: no need to ask ONNX."""
    if node.domain or len(node.outputs) != 1 or not node.inputs:
        return False
    widest, kind = None, node.inputs[0].type if node.inputs[0] is not None else None
    if not isinstance(kind, ir.TensorType) or kind.dtype not in _FLOATS:
        return False
    for value in node.inputs:
        if value is None or value.type != kind or value.shape is None:
            return False
        if any(not isinstance(size, int) and size.value is None for size in value.shape):
            return False
        if widest is None or len(value.shape) > len(widest):
            widest = value.shape
    assert widest is not None
    for value in node.inputs:
        shape = value.shape if value is not None else None
        if shape != widest and any(size != 1 for size in shape or ()):
            return False
    node.outputs[0].type, node.outputs[0].shape = kind, widest
    return True


def _simple(node: ir.Node) -> bool:
    """Matrix products, permutations and sums of floats, whose shapes anyone can tell."""
    x = node.inputs[0] if node.inputs else None
    if node.domain or len(node.outputs) != 1 or x is None or x.shape is None:
        return False
    if not isinstance(x.type, ir.TensorType) or x.type.dtype not in _FLOATS:
        return False
    sizes = _SIMPLE[node.op_type](node, list(x.shape))
    if sizes is None:
        return False
    node.outputs[0].type, node.outputs[0].shape = x.type, ir.Shape(sizes)
    return True


def _transposed(node: ir.Node, sizes: list[Any]) -> list[Any] | None:
    perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else None
    order = range(len(sizes))[::-1] if perm is None else perm
    return [sizes[axis] for axis in order] if sorted(order) == list(range(len(sizes))) else None


def _multiplied(node: ir.Node, sizes: list[Any]) -> list[Any] | None:
    """Gemm of two matrices that fit each other."""
    b = node.inputs[1]
    if b is None or b.shape is None or b.type != node.inputs[0].type:  # type: ignore[union-attr]
        return None
    others = list(b.shape)
    if len(sizes) != 2 or len(others) != 2:
        return None
    turned_a, turned_b = (node.attributes.get_int(name, 0) for name in ("transA", "transB"))
    (rows, inner), (other, columns) = sizes[:: 1 - 2 * turned_a], others[:: 1 - 2 * turned_b]
    return [rows, columns] if inner == other or not isinstance(inner, int) else None


def _summed(node: ir.Node, sizes: list[Any]) -> list[Any] | None:
    """A sum over axes that are known."""
    tensor = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] else None
    if tensor is None:
        return None
    gone = {int(axis) % len(sizes) for axis in tensor.numpy().reshape(-1)} if sizes else set()
    keep = node.attributes.get_int("keepdims", 1)
    if not gone:
        return None
    kept = [1 if axis in gone else size for axis, size in enumerate(sizes)]
    return kept if keep else [size for axis, size in enumerate(sizes) if axis not in gone]


_SIMPLE = {
    "Transpose": _transposed,
    "Gemm": _multiplied,
    "ReduceSum": _summed,
    "ReduceMean": _summed,
}


def forget_false_sizes(node: ir.Node, kind: onnx.TypeProto) -> None:
    """ONNX takes a size that it does not know for 0 when it infers Attention's outputs.

    And it gives MaxUnpool no axes at all where the output's shape is an input.
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


def _of_asked_rank(node: ir.Node) -> ir.Shape | None:
    """As many unknown sizes as the wanted shape has elements; Expand may give more."""
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
