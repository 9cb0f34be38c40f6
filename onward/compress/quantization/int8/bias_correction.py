"""Correct biases: take back the mean error that rounded weights add to each output channel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onward.compress.quantization.int8.int8_layers import Int8Layer
from onward.compress.quantization.int8.scaling import replace_weight
from onward.compress.quantization.int8.static_writer import add_initializer
from onward.passes.rewrite import Names
from onward.passes.value_facts import Array, input_of

Corrections = dict[str, Array]  # what is added to the bias, by the layer's node


def apply_corrections(
    model: ir.Model, layers: Mapping[str, Int8Layer], corrections: Mapping[str, Array], names: Names
) -> None:
    """Add corrections to the biases of a model's layers, in place."""
    nodes = {str(node.name): node for node in model.graph}
    for name, correction in corrections.items():
        layer = layers[name]
        node = nodes[layer.adder or name]
        if layer.adder is not None:
            index = next(
                i for i, each in enumerate(node.inputs) if each and each.name == layer.bias
            )
        else:
            index = 2
        if input_of(node, index) is None:
            bias = names.fresh(f"{name}/bias")
            made = add_initializer(model.graph, bias, correction.astype(np.float32))
            node.resize_inputs(index + 1)
            node.replace_input_with(index, made)
            continue
        old = node.inputs[index]
        assert old is not None and old.const_value is not None
        array = np.asarray(old.const_value.numpy())
        changed = (array.reshape(-1) + correction).astype(array.dtype).reshape(array.shape)
        replace_weight(node, index, changed, names)
