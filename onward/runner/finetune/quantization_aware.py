"""Quantization-aware training: the model trains with the rounding that it will run with.

    aware = make_quantization_aware(model, [{"x": x}])
    session = TrainingSession(aware.model, loss, optimizer, {"frozen": aware.scales})
    quantized = export_quantized(aware, session.parameters)

QuantizeLinear and DequantizeLinear are inserted before the inputs of linear layers: int8 per tensor
for data, with a range from calibration, and int8 per output for weights, which onnxruntime
recommends for CPUs. Gradients pass through the rounding as if it were not there
(gradients/rules/quantized.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError, UnsupportedModel
from onward.graph.graph_ops import GraphOps, extend, taken_names
from onward.passes.prune import drop_unused
from onward.passes.training_mode import free_name
from onward.passes.value_facts import Array
from onward.programs.export import export_model
from onward.programs.select import restore_parameters
from onward.runner.finetune.linear_layers import (
    LinearLayer,
    all_readers,
    find_layers,
    prepare_layers,
)
from onward.sessions.inference import InferenceSession
from onward.settings import list_of

_AXIS_SINCE = 13  # the opset in which QuantizeLinear got an axis
_LARGEST_WEIGHT = 127  # weights are symmetric: -127 to 127
_DATA_STEPS = 255  # from -128 to 127


@dataclass(frozen=True, kw_only=True)
class QuantizationAware:
    """A model that rounds as it will when it is quantized.

    Attributes:
        model: the model that trains
        scales: the names of the scales; freeze them, or train them too (learned step sizes)
        weights: the names of the weights that are quantized
    """

    model: ir.Model
    scales: tuple[str, ...]
    weights: tuple[str, ...]


def make_quantization_aware(
    model: ir.Model,
    calibration: Iterable[Mapping[str, Any]],
    targets: Sequence[str] = ("*",),
) -> QuantizationAware:
    """Insert QuantizeLinear and DequantizeLinear before the linear layers of a copy of a model.

    Layers are MatMul, Gemm and Conv (not grouped) with float32 weights that no other node reads.

    Args:
        model: the model, which does not change; of opset 13 or newer
        calibration: some batches of feeds, to find the range of each layer's data
        targets: names or patterns of weights, or of the nodes that read them
    """
    targets = list_of(str, "a list of names or patterns", "['encoder.*']")("targets", targets)
    changed = prepare_layers(model)
    if changed.opset_imports[""] < _AXIS_SINCE:
        raise UnsupportedModel(
            f"the model is of opset {changed.opset_imports['']}, which cannot quantize by channel\n"
            f"export it in opset {_AXIS_SINCE} or newer"
        )
    layers = [each for each in find_layers(changed, targets) if _is_quantizable(each)]
    if not layers:
        raise OptionError(
            "targets: no layer that matches can be quantized: its weight is not float32, or other "
            "nodes read it\nchoose other targets"
        )
    data = list(dict.fromkeys(layer.node.inputs[0] for each in layers for layer in each))
    ranges = _calibrate(changed, [value for value in data if value is not None], calibration)
    op, taken, scales = extend(changed), taken_names(changed), list[str]()
    for value, (low, high) in ranges.items():
        readers = {layer.node for each in layers for layer in each if layer.node.inputs[0] is value}
        uses = [use for use in value.uses() if use[0] in readers and use[1] == 0]
        scale = max((high - low) / _DATA_STEPS, float(np.finfo(np.float32).tiny))
        zero = np.array(np.clip(np.rint(-low / scale) - 128, -128, 127), np.int8)
        scales.append(_insert(op, taken, value, uses, np.array(scale, np.float32), zero, None))
    for each in layers:
        weight, axis = each[0].weight, 0 if each[0].out_first else 1
        scale_of_weight = _weight_scales(weight, axis)
        zeros = np.zeros(scale_of_weight.shape, np.int8)
        uses = list(weight.uses())
        scales.append(_insert(op, taken, weight, uses, scale_of_weight, zeros, axis))
    changed.graph.sort()
    names = tuple(str(each[0].weight.name) for each in layers)
    return QuantizationAware(model=changed, scales=tuple(scales), weights=names)


def export_quantized(aware: QuantizationAware, tensors: Mapping[str, Any]) -> ir.Model:
    """The trained model with int8 weights and DequantizeLinear (a QDQ model), for inference.

    Args:
        aware: what `make_quantization_aware` returned
        tensors: trained tensors by name, such as `session.parameters`
    """
    given = {name: np.asarray(tensors[name]) for name in tensors}
    model = export_model(aware.model, {**_tied_copies(aware.model, given), **given})
    for name in aware.weights:
        weight = model.graph.initializers[name]
        [(node, _)] = weight.uses()
        scale, zero = (_array(value) for value in node.inputs[1:3])
        sizes = [1] * _array(weight).ndim
        sizes[node.attributes["axis"].as_int()] = -1
        steps = np.rint(_array(weight) / scale.reshape(sizes)) + zero.reshape(sizes)
        tensor = ir.tensor(np.clip(steps, -128, 127).astype(np.int8), name=f"{name}.int8")
        held = ir.val(
            free_name(f"{name}.int8", taken_names(model)),
            dtype=tensor.dtype,
            shape=weight.shape,
            const_value=tensor,
        )
        model.graph.register_initializer(held)
        node.outputs[0].replace_all_uses_with(held)
    return drop_unused(model)


def _tied_copies(model: ir.Model, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The transposed copies of parameters that a session trains as one with them."""
    tied = restore_parameters(model.clone(), tensors).tied
    return {copy: tensors[name].T for copy, name in tied.items() if name in tensors}


def _is_quantizable(layers: Sequence[LinearLayer]) -> bool:
    weight, out_first = layers[0].weight, layers[0].out_first
    assert weight.const_value is not None
    return (
        weight.const_value.dtype == ir.DataType.FLOAT
        and not weight.is_graph_output()
        and all(each.is_product and each.dtype == ir.DataType.FLOAT for each in layers)
        and all(each.out_first == out_first for each in layers)
        and layers[0].shape == tuple(weight.const_value.shape.numpy())
        and set(all_readers(weight)) == {each.node for each in layers}
    )


def _calibrate(
    model: ir.Model, values: Sequence[ir.Value], calibration: Iterable[Mapping[str, Any]]
) -> dict[ir.Value, tuple[float, float]]:
    """The smallest and the largest number of each value, 0 included."""
    watched = model.clone()
    made = {str(value.name): value for node in watched.graph for value in node.outputs}
    names = [str(value.name) for value in values if str(value.name) in made]
    for name in names:
        value = made[name]
        value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
        if not value.is_graph_output():
            watched.graph.outputs.append(value)
    session = InferenceSession(watched)
    ranges = dict.fromkeys((str(value.name) for value in values), (0.0, 0.0))
    batches = 0
    for feeds in calibration:
        batches += 1
        found = dict(zip(names, session.run(names, dict(feeds)))) if names else {}
        for name, (low, high) in ranges.items():
            array = np.asarray(found[name] if name in found else feeds[name])
            if array.size:
                ranges[name] = min(low, float(array.min())), max(high, float(array.max()))
    if not batches:
        raise OptionError("calibration is empty\ngive some batches, such as [{'x': x}]")
    return {value: ranges[str(value.name)] for value in values}


def _weight_scales(weight: ir.Value, axis: int) -> Array:
    """The step of each output's weights."""
    array = _array(weight)
    others = tuple(i for i in range(array.ndim) if i != axis)
    largest = np.maximum(np.abs(array).max(others), np.finfo(np.float32).tiny * 256)
    return np.asarray(largest / _LARGEST_WEIGHT, np.float32)


def _insert(
    op: GraphOps,
    taken: set[str],
    value: ir.Value,
    uses: Sequence[tuple[ir.Node, int]],
    scale: Array,
    zero: Array,
    axis: int | None,
) -> str:
    """Let readers read a value rounded to steps of a scale; the name of the scale."""
    name = free_name(f"{value.name}.scale", taken)
    s = op.initializer(name, scale)
    z = op.initializer(free_name(f"{value.name}.zero_point", taken), zero)
    steps = op.QuantizeLinear(value, s, z, axis=axis)
    rounded = op.DequantizeLinear(steps, s, z, axis=axis)
    rounded.shape = value.shape
    for node, index in uses:
        node.replace_input_with(index, rounded)
    return name


def _array(value: ir.Value | None) -> Array:
    assert value is not None and value.const_value is not None
    return np.asarray(value.const_value.numpy())
