"""Refuse nodes that crash engines, whose own checks miss them (found by R1)."""

from __future__ import annotations

from onward.errors import InvalidModel
from onward.graph.operators import VARIADIC, named
from onward.graph.scan.onnx_messages import ScannedNode

# Operators of any number of inputs: onnxruntime reads one that is missing.
_ANY_NUMBER = VARIADIC | named("Concat Einsum FeatureVectorizer SequenceConstruct")
# Attributes that count axes: ONNX's shape inference cuts them to 32 bits and reads there.
_AXES = ("axis", "axes", "batch_axis", "time_axis", "perm", "scan_input_axes", "scan_output_axes")
_MOST_AXES = 1 << 15


def check_node_form(node: ScannedNode) -> None:
    """Refuse missing inputs and axes that no tensor has."""
    if node.op in _ANY_NUMBER and "" in node.inputs:
        raise InvalidModel(f"{node}: its required input {node.inputs.index('')} is missing")
    scanned = node.attributes.get("num_scan_inputs")
    if scanned is not None and (scanned.number or 0) > len(node.inputs):
        count = len(node.inputs)
        raise InvalidModel(
            f"{node}: num_scan_inputs is {scanned.number}, but it has {count} inputs"
        )
    pieces = node.attributes.get("num_outputs")
    if pieces is not None and pieces.number is not None and pieces.number < len(node.outputs):
        raise InvalidModel(
            f"{node} gives {len(node.outputs)} outputs, but num_outputs is {pieces.number}"
        )
    for name in _AXES:
        attribute = node.attributes.get(name)
        if attribute is None:
            continue
        for number in (*attribute.ints, *(() if attribute.number is None else (attribute.number,))):
            if abs(number) > _MOST_AXES:
                raise InvalidModel(f"{node}: {name} is {number}, but no tensor has so many axes")
