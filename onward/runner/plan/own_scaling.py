"""Whether a model takes numbers as they are: it scales them itself, or is fitted to them."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.shapes.ml_operators import DOMAIN
from onward.passes.value_facts import constant, other_input

_SCALERS = ("Scaler", "Imputer", "Normalizer")
_VIEWS = ("Identity", "Cast", "Reshape", "Flatten", "Concat")
_CONVERTER = "skl2onnx"  # writes models that are fitted, never new ones


def explain_own_scaling(model: ir.Model) -> str | None:
    """Why numbers should not be scaled before the model; None: nothing speaks against it."""
    if model.producer_name == _CONVERTER:
        return "the model was fitted by scikit-learn to the numbers as they are"
    for value in model.graph.inputs:
        node = None if value.is_initializer() else _scaler(value)
        if node is not None:
            return f"the model scales them itself, by {node.op_type}"
    return None


def _scaler(value: ir.Value) -> ir.Node | None:
    """The node that scales an input: scikit-learn's, or x - mean of a layer of Keras."""
    for node in value.consumers():
        if node.domain == DOMAIN and node.op_type in _SCALERS:
            return node
        if node.domain == "" and node.op_type == "Sub" and node.inputs[0] is value:
            mean = constant(other_input(node, value))
            divided = [each for each in node.outputs[0].consumers() if each.op_type == "Div"]
            if mean is not None and mean.size > 1 and divided:
                return node
        if node.domain == "" and node.op_type in _VIEWS:
            found = _scaler(node.outputs[0])
            if found is not None:
                return found
    return None
