"""Correct biases: make the mean of each output channel what it was before quantization."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.quantization.int8.chains import result_of
from onward.compress.quantization.int8.layers import Layer
from onward.compress.quantization.int8.scaling import replace_weight
from onward.compress.quantization.int8.static_writer import add_initializer
from onward.compress.quantization.int8.statistics import measure_means
from onward.passes.rewrite import Names
from onward.passes.value_facts import Array, input_of, rank

ROUNDS = 3  # a layer's correction changes the data of those behind it

Corrections = dict[str, Array]  # what is added to the bias, by the layer's node
Written = tuple[ir.Model, Mapping[str, str]]  # a quantized model, and its names for values


def find_corrections(
    model: ir.Model,
    layers: Mapping[str, Layer],
    write: Callable[[Corrections], Written],
    data: Calibration,
    rounds: int = ROUNDS,
) -> Corrections:
    """What to add to biases so that the quantized model's channels have the float model's means.

    b += mean(y) - mean(y of the quantized model), for each channel of each layer's output.
    """
    nodes = {str(node.name): node for node in model.graph}
    values = {
        name: _output(nodes, layer) for name, layer in layers.items() if _has_output(nodes, layer)
    }
    axes = {
        str(value.name): 1 if layers[name].operator == "Conv" else -1
        for name, value in values.items()
    }
    expected = measure_means(model, axes, data)
    found: Corrections = {}
    for _ in range(rounds):
        quantized, renamed = write(found)
        wanted = {renamed.get(each, each): axis for each, axis in axes.items()}
        means = measure_means(quantized, wanted, data)
        for name, value in values.items():
            own = str(value.name)
            difference = expected[own] - means[renamed.get(own, own)]
            found[name] = found.get(name, np.zeros_like(difference)) + difference
    return found


def _has_output(nodes: Mapping[str, ir.Node], layer: Layer) -> bool:
    """Whether a layer can be corrected: it has a bias, or may get one."""
    if not layer.is_linear or (layer.operator == "MatMul" and layer.adder is None):
        return False
    return rank(_output(nodes, layer)) is not None


def _output(nodes: Mapping[str, ir.Node], layer: Layer) -> ir.Value:
    if layer.adder is not None:
        return nodes[layer.adder].outputs[0]
    return result_of(nodes[layer.node])


def apply_corrections(
    model: ir.Model, layers: Mapping[str, Layer], corrections: Mapping[str, Array], names: Names
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
