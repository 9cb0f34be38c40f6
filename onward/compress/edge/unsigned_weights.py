"""Store int8 weights as uint8: wasm multiplies u8 with u8 faster than u8 with s8."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

_PLACES = {"MatMulInteger": (1, 3), "DequantizeLinear": (0, 2)}  # the weight and its zero point


def to_unsigned_weights(model: ir.Model) -> ir.Model:
    """A copy with w + 128 and z + 128 for int8 weights w and zero points z: equal products."""
    copy = model.clone()
    graph = copy.graph
    made: dict[ir.Value, ir.Value] = {}
    for node in graph:
        if node.domain or node.op_type not in _PLACES:
            continue
        weight, zero = (_initializer(node, place) for place in _PLACES[node.op_type])
        if weight is None or zero is None or weight.const_value is None or not weight.shape:
            continue
        for place, value in zip(_PLACES[node.op_type], (weight, zero)):
            if value not in made:
                made[value] = _shifted(graph, value)
            node.replace_input_with(place, made[value])
    for value in made:
        if not value.uses() and value.name in graph.initializers:
            del graph.initializers[str(value.name)]
    return copy


def _initializer(node: ir.Node, place: int) -> ir.Value | None:
    value = node.inputs[place] if place < len(node.inputs) else None
    if value is None or not value.is_initializer() or value.dtype is not ir.DataType.INT8:
        return None
    return value


def _shifted(graph: ir.Graph, value: ir.Value) -> ir.Value:
    assert value.const_value is not None
    array = (value.const_value.numpy().astype(np.int16) + 128).astype(np.uint8)
    name = f"{value.name}/unsigned"
    tensor = ir.tensor(array, name=name)
    made = ir.val(name, dtype=tensor.dtype, shape=value.shape, const_value=tensor)
    graph.register_initializer(made)
    return made
