"""Quantization-aware training: the model trains with the rounding that it will run with.

    aware = make_quantization_aware(model, [{"x": x}])
    session = TrainingSession(aware.model, loss, optimizer, {"frozen": aware.scales})
    quantized = export_quantized(aware, session.parameters)

Weights are rounded to int8 per output, or to fewer bits, or in blocks that share a scale
(passes/fake_quantization.py). With int8 per output, the data of layers is rounded too:
QuantizeLinear and DequantizeLinear per tensor, with a range from calibration, which onnxruntime
recommends for CPUs. Gradients pass through the rounding as if it were not there
(gradients/rules/quantized.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError, UnsupportedModel
from onward.graph.graph_ops import GraphOps, extend, taken_names
from onward.graph.int8_weights import CUT_OFF_FREE, LARGEST
from onward.passes.composites import DOMAIN
from onward.passes.downgrade import STOCK_OPSET, lower_opset
from onward.passes.drop_unused import drop_unused
from onward.passes.fake_quantization import QuantizationGrid, best_scales, fake_quantize
from onward.passes.pipelines import PREPARE
from onward.passes.training_mode import free_name
from onward.passes.value_facts import Array
from onward.programs.export import export_model, tied_tensors
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
_OPSETS = {8: 21, 4: 21, 2: 25}  # the first one with blocks and with the type
_INTEGERS = {8: ir.DataType.INT8, 4: ir.DataType.INT4, 2: ir.DataType.INT2}
_DATA_STEPS = 255  # from -128 to 127


@dataclass(frozen=True, kw_only=True)
class QuantizationAware:
    """A model that rounds as it will when it is quantized.

    Attributes:
        model: the model that trains
        scales: the names of the scales; freeze them, or train them too (learned step sizes)
        weights: the names of the weights that are quantized
        bits: of the weights
        rounded: where each weight is rounded: its grid, its scale and the rounded weight
    """

    model: ir.Model
    scales: tuple[str, ...]
    weights: tuple[str, ...]
    bits: int = 8
    rounded: Mapping[str, RoundedWeight] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundedWeight:
    """The grid of a weight, and the names of its scale and of the value that layers read."""

    grid: QuantizationGrid
    scale: str
    value: str


def make_quantization_aware(
    model: ir.Model,
    calibration: Iterable[Mapping[str, Any]],
    targets: Sequence[str] = ("*",),
    *,
    bits: int = 8,
    block: int = 0,
) -> QuantizationAware:
    """Round the weights, and in int8 the data, of the linear layers of a copy of a model.

    Layers are MatMul, Gemm and Conv (not grouped) with float32 weights that no other node reads.

    Args:
        model: the model, which does not change; of opset 13 or newer for int8
        calibration: some batches of feeds, to find the range of each layer's data; it is not read
            for fewer bits or for blocks, whose data stays float
        targets: names or patterns of weights, or of the nodes that read them
        bits: of the weights: 8, 4 or 2
        block: weights of an output that share a scale; 0: all of them
    """
    targets = list_of(str, "a list of names or patterns", "['encoder.*']")("targets", targets)
    _check_format(bits, block)
    weights_only = bits < 8 or block > 0
    changed = prepare_layers(PREPARE(model.clone()) if weights_only else model)
    if changed.opset_imports[""] < _AXIS_SINCE:
        raise UnsupportedModel(
            f"the model is of opset {changed.opset_imports['']}, which cannot quantize by channel\n"
            f"export it in opset {_AXIS_SINCE} or newer"
        )
    layers = [
        each
        for each in find_layers(changed, targets)
        if _is_quantizable(each) and (bits != 2 or _runs_in_2_bits(each))
    ]
    if not layers:
        raise OptionError(
            "targets: no layer that matches can be quantized: its weight is not float32, or other "
            "nodes read it\nchoose other targets"
        )
    op, taken, scales = extend(changed), taken_names(changed), list[str]()
    if not weights_only:
        scales += _round_data(changed, op, taken, layers, calibration)
    rounded: dict[str, RoundedWeight] = {}
    for each in layers:
        weight, grid = each[0].weight, _weight_grid(each[0], bits, block)
        scale = op.initializer(
            free_name(f"{weight.name}.scale", taken), _weight_scales(weight, grid)
        )
        uses = list(weight.uses())
        value = fake_quantize(op, changed, weight, scale, grid)
        for node, index in uses:
            node.replace_input_with(index, value)
        scales.append(str(scale.name))
        rounded[str(weight.name)] = RoundedWeight(grid, str(scale.name), str(value.name))
    changed.graph.sort()
    return QuantizationAware(
        model=changed, scales=tuple(scales), weights=tuple(rounded), bits=bits, rounded=rounded
    )


def export_quantized(aware: QuantizationAware, tensors: Mapping[str, Any]) -> ir.Model:
    """The trained model with integer weights and DequantizeLinear (a QDQ model), for inference.

    Args:
        aware: what `make_quantization_aware` returned
        tensors: trained tensors by name, such as `session.parameters`
    """
    given = {name: np.asarray(tensors[name]) for name in tensors}
    trained = {**_tied_copies(aware.model, given), **given}
    model = aware.model.clone()
    op, taken = extend(model), taken_names(model)
    held = model.graph.initializers
    values = {str(value.name): value for node in model.graph for value in node.outputs}
    for name, place in aware.rounded.items():
        weight = np.asarray(trained.get(name, _array(held[name])))
        scale = np.asarray(trained.get(place.scale, _array(held[place.scale])))
        steps = place.grid.to_integers(weight / place.grid.spread(scale, weight.shape))
        integers = op.initializer(
            free_name(f"{name}.int{aware.bits}", taken),
            ir.tensor(steps.astype(_INTEGERS[aware.bits].numpy()), dtype=_INTEGERS[aware.bits]),
        )
        old = values[place.value]
        new = op.DequantizeLinear(
            integers,
            held[place.scale],
            axis=place.grid.axis if scale.ndim else None,
            block_size=place.grid.block or None,
        )
        new.shape, new.type = old.shape, old.type
        old.replace_all_uses_with(new)
    model.graph.sort()
    drop_unused(model)
    left = {name: array for name, array in trained.items() if name in model.graph.initializers}
    exported = export_model(model, left)
    exported.opset_imports.pop(DOMAIN, None)  # no fake quantization is left
    if exported.opset_imports[""] <= STOCK_OPSET:
        return exported
    return lower_opset(exported, STOCK_OPSET, _OPSETS[aware.bits])


def _check_format(bits: int, block: int) -> None:
    if bits not in _INTEGERS:
        raise OptionError(f"bits must be 8, 4 or 2, not {bits!r}")
    if block and (block < 16 or block & (block - 1)):
        raise OptionError(
            f"block must be 0 or a power of 2 from 16 on, not {block!r}\n"
            "32, 64 and 128 are what engines have kernels for"
        )


def _round_data(
    model: ir.Model,
    op: GraphOps,
    taken: set[str],
    layers: Sequence[Sequence[LinearLayer]],
    calibration: Iterable[Mapping[str, Any]],
) -> list[str]:
    """Insert QuantizeLinear and DequantizeLinear before the data of layers; the scales' names."""
    data = list(dict.fromkeys(layer.node.inputs[0] for each in layers for layer in each))
    ranges = _calibrate(model, [value for value in data if value is not None], calibration)
    scales = []
    for value, (low, high) in ranges.items():
        readers = {layer.node for each in layers for layer in each if layer.node.inputs[0] is value}
        uses = [use for use in value.uses() if use[0] in readers and use[1] == 0]
        scale = max((high - low) / _DATA_STEPS, float(np.finfo(np.float32).tiny))
        zero = np.array(np.clip(np.rint(-low / scale) - 128, -128, 127), np.int8)
        scales.append(_insert(op, taken, value, uses, np.array(scale, np.float32), zero))
    return scales


def _weight_grid(layer: LinearLayer, bits: int, block: int) -> QuantizationGrid:
    """Scales per output, or in blocks of an output's weights if it is a matrix."""
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    if bits == 8:
        high = LARGEST if block else CUT_OFF_FREE  # exact on every processor
        low = -high  # int8 weights are symmetric
    out = 0 if layer.out_first else 1
    if block and not layer.is_conv:
        return QuantizationGrid(low=low, high=high, axis=1 - out, block=block)
    return QuantizationGrid(low=low, high=high, axis=out)


def _tied_copies(model: ir.Model, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The copies of parameters that a session trains as one with them."""
    tied = restore_parameters(model.clone(), tensors).tied
    transposed = {copy: tensors[name].T for copy, name in tied.items() if name in tensors}
    return {**tied_tensors(model, tensors), **transposed}


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


def _runs_in_2_bits(layers: Sequence[LinearLayer]) -> bool:
    """Whether onnxruntime computes a layer with int2 weights.

    Version 1.31 fuses them with MatMul, and is wrong if outputs are not a multiple of 4.
    """
    outputs = layers[0].shape[0 if layers[0].out_first else -1]
    return outputs % 4 == 0 or all(each.node.op_type != "MatMul" for each in layers)


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


def _weight_scales(weight: ir.Value, grid: QuantizationGrid) -> Array:
    """The step of each output's or block's weights."""
    array = _array(weight)
    if grid.block or grid.high < CUT_OFF_FREE:  # fewer than 8 bits
        return best_scales(array, grid)
    others = tuple(i for i in range(array.ndim) if i != grid.axis)
    largest = np.maximum(np.abs(array).max(others), np.finfo(np.float32).tiny * 256)
    return np.asarray(largest / grid.high, np.float32)


def _insert(
    op: GraphOps,
    taken: set[str],
    value: ir.Value,
    uses: Sequence[tuple[ir.Node, int]],
    scale: Array,
    zero: Array,
) -> str:
    """Let readers read a value rounded to steps of a scale; the name of the scale."""
    name = free_name(f"{value.name}.scale", taken)
    s = op.initializer(name, scale)
    z = op.initializer(free_name(f"{value.name}.zero_point", taken), zero)
    rounded = op.DequantizeLinear(op.QuantizeLinear(value, s, z), s, z)
    rounded.shape = value.shape
    for node, index in uses:
        node.replace_input_with(index, rounded)
    return name


def _array(value: ir.Value | None) -> Array:
    assert value is not None and value.const_value is not None
    return np.asarray(value.const_value.numpy())
