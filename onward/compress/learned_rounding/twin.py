"""Twin: a quantized model whose integers and scales can be trained, and the inverse.

    twin = make_twin(quantized, original)
    session = TrainingSession(twin.model, loss, optimizer, {"trainable": twin.parameters})
    better = twin.to_quantized(session.parameters)

Each DequantizeLinear(integers, scale) becomes (RoundToGrid(steps) - zero) scale factor: `steps` are
floats in units of the scale, `factor` begins at 1. So one learning rate fits weights of any size:
0.01 is a hundredth of the distance of two integers, or 1 % of a scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.learned_rounding.quantized_weights import (
    QuantizedWeight,
    array_of,
    find_weights,
    is_constant,
    matching_floats,
    replace_tensor,
)
from onward.graph.graph_ops import extend, taken_names
from onward.passes.drop_unused import drop_unused
from onward.passes.fake_quantization import Array, from_blocks, round_to_grid, to_blocks
from onward.passes.training_mode import free_name
from onward.passes.value_facts import input_of

_DATA_LEVELS = 255  # of 8-bit data


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A model that trains, and where its parameters belong in the quantized model.

    Attributes:
        model: the model that trains
        quantized: the model that it was made from, which does not change
        weights: the quantized weights by the name of their steps
        factors: the names of factors by the name of the scale in the quantized model
        levels: the largest integer that a factor scales, by pattern of factors
    """

    model: ir.Model
    quantized: ir.Model
    weights: Mapping[str, QuantizedWeight]
    factors: Mapping[str, str]
    levels: Mapping[str, int]

    @property
    def parameters(self) -> list[str]:
        """The names of all parameters."""
        return [*self.weights, *dict.fromkeys(self.factors.values())]

    def to_quantized(self, tensors: Mapping[str, Any]) -> ir.Model:
        """The quantized model with the integers and the scales of trained tensors."""
        model = self.quantized.clone()
        held = model.graph.initializers
        for name, weight in self.weights.items():
            steps = weight.grid.to_integers(np.asarray(tensors[name]))
            replace_tensor(held[weight.integers_name], steps)
        before = {name: array_of(held[name]).astype(np.float32) for name in self.factors}
        for name, factor in self.factors.items():
            shape = before[name].shape
            replace_tensor(held[name], before[name] * np.asarray(tensors[factor]).reshape(shape))
        _scale_biases(model, self.quantized)
        return model


def make_twin(quantized: ir.Model, original: ir.Model | None = None) -> Twin:
    """The twin of a quantized model; an original's weights say to which side each integer leans."""
    model = quantized.clone()
    weights = find_weights(model)
    floats = {} if original is None else matching_floats(weights, original)
    builder = _Builder(model)
    for weight in weights:
        builder.add_weight(weight, floats.get(weight.integers_name))
    builder.add_data_scales()
    model.graph.sort()
    drop_unused(model)
    by_integers = {each.integers_name: each for each in find_weights(quantized)}
    return Twin(
        model=model,
        quantized=quantized,
        weights={name: by_integers[integers] for integers, name in builder.steps.items()},
        factors=builder.factors,
        levels=builder.levels,
    )


class _Builder:
    """Replaces the nodes of a copy of the quantized model."""

    def __init__(self, model: ir.Model) -> None:
        self.model, self.op, self.taken = model, extend(model), taken_names(model)
        self.steps: dict[str, str] = {}  # name of the integers: name of the parameter
        self.factors: dict[str, str] = {}  # name of the scale: name of the parameter
        self.levels: dict[str, int] = {}  # pattern of factors: the largest integer
        self._step_values: dict[str, ir.Value] = {}
        self._scales: dict[str, ir.Value] = {}

    def add_weight(self, weight: QuantizedWeight, known: Array | None) -> None:
        """DequantizeLinear(q, s, z) -> (RoundToGrid(steps) - z) s factor"""
        name, op, grid = weight.integers_name, self.op, weight.grid
        if name not in self._step_values:
            start = weight.integers() if known is None else weight.steps_of(known)
            parameter = free_name(f"{name}.steps", self.taken)
            self.steps[name] = parameter
            self._step_values[name] = round_to_grid(
                op, self.model, op.initializer(parameter, start), grid
            )
        rounded, old = self._step_values[name], weight.node.outputs[0]
        scale = self._scale(weight.stored_scale, max(-grid.low, grid.high))
        shape = weight.integers().shape
        blocks, wide = to_blocks(op, rounded, scale, grid)
        if weight.zero is not None:
            _, zero = to_blocks(op, rounded, op.constant(weight.zero), grid)
            blocks = op.Sub(blocks, zero)
        new = from_blocks(op, op.Mul(blocks, wide), shape, grid)
        old.replace_all_uses_with(new, replace_graph_outputs=True)

    def add_data_scales(self) -> None:
        """QuantizeLinear(x, s), DequantizeLinear(q, s) of data -> the same with s factor"""
        for node in list(self.model.graph):
            if node.op_type != "QuantizeLinear" or node.domain:
                continue
            scale = input_of(node, 1)
            if scale is None or not _is_trainable_scale(scale):
                continue
            trained = self._scale(scale, _DATA_LEVELS)
            readers = [each for each, _ in node.outputs[0].uses()]
            pairs = [each for each in readers if each.op_type == "DequantizeLinear"]
            if len(pairs) != len(readers):
                continue
            node.replace_input_with(1, trained)
            for each in pairs:
                own = input_of(each, 1)
                if own is None or not _is_trainable_scale(own):
                    continue
                if np.array_equal(array_of(own), array_of(scale)):
                    self.factors[str(own.name)] = self.factors[str(scale.name)]
                    each.replace_input_with(1, trained)

    def _scale(self, scale: ir.Value, levels: int) -> ir.Value:
        """A scale times its factor."""
        name = str(scale.name)
        if name not in self._scales:
            parameter = free_name(f"{name}.of{levels}.factor", self.taken)
            self.levels[f"*.of{levels}.factor*"] = levels
            factor = self.op.initializer(parameter, np.ones(array_of(scale).shape, np.float32))
            self.factors[name] = parameter
            held = self.op.constant(array_of(scale).astype(np.float32))
            self._scales[name] = self.op.Mul(held, factor)
        return self._scales[name]


def _is_trainable_scale(value: ir.Value | None) -> bool:
    return value is not None and is_constant(value) and value.dtype in (None, ir.DataType.FLOAT)


def _scale_biases(model: ir.Model, before: ir.Model) -> None:
    """Write int32 biases again whose scale is that of the data times that of the weight."""
    old = before.graph.initializers
    for node in model.graph:
        parts = [_dequantizer(node, place) for place in range(3)]
        data, weight, bias = parts
        if data is None or weight is None or bias is None:
            continue
        q, scale = bias.inputs[0], bias.inputs[1]
        own = [input_of(each, 1) for each in (data, weight)]
        if q is None or scale is None or not is_constant(q) or not is_constant(scale):
            continue
        if q.const_value is None or q.const_value.dtype != ir.DataType.INT32:
            continue
        if any(each is None or not is_constant(each) for each in own):
            continue
        names = [str(each.name) for each in own if each is not None]
        first, second = (array_of(old[name]) for name in names)
        product = np.ravel(first) * np.ravel(second)
        held = array_of(old[str(scale.name)])
        if product.size != held.size or not np.allclose(product, held.ravel(), rtol=1e-3):
            continue
        floats = array_of(old[str(q.name)]) * held
        now = np.ravel(array_of(own[0])) * np.ravel(array_of(own[1]))  # type: ignore[arg-type]
        replace_tensor(scale, now.reshape(held.shape))
        limit = np.iinfo(np.int32).max
        replace_tensor(q, np.clip(np.rint(floats / now.reshape(held.shape)), -limit, limit))


def _dequantizer(node: ir.Node, place: int) -> ir.Node | None:
    """The DequantizeLinear that makes an input of a node."""
    value = input_of(node, place)
    maker = value.producer() if value is not None else None
    return maker if maker is not None and maker.op_type == "DequantizeLinear" else None
