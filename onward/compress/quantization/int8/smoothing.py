"""Move the range of data's channels into weights: SmoothQuant, and equalisation of convolutions.

x w = (x / s) (w s): with s chosen for each channel, x / s has no channel that is much larger than
the others, so that one scale for all of them loses less. 1 / s is folded into what computes x; if
that has other readers, a Mul is added in front of a MatMul.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.quantization.int8.int8_layers import Int8Layer, find_layers
from onward.compress.quantization.int8.scaling import (
    can_scale,
    clip_limit,
    multiply_weight,
    scale,
)
from onward.compress.quantization.int8.static_writer import add_initializer
from onward.compress.quantization.int8.statistics import (
    Channels,
    measure_channels,
    named_values,
)
from onward.compress.quantization.int8.weight_scales import (
    channel_scales,
    dequantize,
    round_weight,
)
from onward.passes.normalize import sort_nodes
from onward.passes.rewrite import Names
from onward.passes.value_facts import Array, rank

_ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
_WORTH_FOLDED = 0.98  # the share of the error that may be left for a change without cost
_WORTH_ADDED = 0.85  # ... for one more node
_LARGEST_FACTOR = 64.0
_ERROR_COLUMNS = 2048  # columns of a weight that the error is estimated with


@dataclass(frozen=True)
class Smoothed:
    """A Mul that was added in front of layers; without these layers, it is not needed.

    Attributes:
        value: the value in front of the Mul
        result: the value behind it
        layers: the nodes that read the result
        factors: what the Mul multiplies the channels by
    """

    value: str
    result: str
    layers: tuple[str, ...]
    factors: Array


def smooth(
    model: ir.Model,
    layers: dict[str, Int8Layer],
    data: Calibration,
    *,
    matrices: bool,
    convolutions: bool,
    int8: Collection[str] = (),
) -> list[Smoothed]:
    """Scale channels between layers in place, where the layers' outputs then err less.

    Args:
        model: the model
        layers: its layers by node; their data and weights get new names here too
        data: what to measure channels with
        matrices: whether to scale the data of MatMul and Gemm
        convolutions: whether to scale the data of Conv
        int8: values that are int8 already, so that a Mul would make them float again
    """
    groups = _readers(model, layers, matrices, convolutions, int8)
    axes = {value: _axis(group) for value, group in groups.items()}
    if not axes:
        return []
    measured = measure_channels(model, axes, data)
    names, added = Names(model), list[Smoothed]()
    values, nodes = named_values(model.graph), {str(node.name): node for node in model.graph}
    for value, group in groups.items():
        factors = _choose(values[value], group, nodes, measured[value])
        if factors is None:
            continue
        for layer in group:
            multiply_weight(nodes[layer.node], 1, 1 / factors, _in_axis(layer), names)
        readers = [nodes[layer.node] for layer in group]
        if can_scale(values[value], readers, axes[value]):
            scale(values[value], factors, names)
        else:
            made = _add_mul(model, values[value], readers, factors, names)
            added.append(Smoothed(value, made, tuple(each.node for each in group), factors))
    current, _ = find_layers(model)  # scaling a weight or bias that others read has made a copy
    layers.update({name: current[name] for name in layers})
    sort_nodes(model)
    return added


def _readers(
    model: ir.Model,
    layers: Mapping[str, Int8Layer],
    matrices: bool,
    convolutions: bool,
    int8: Collection[str],
) -> dict[str, list[Int8Layer]]:
    """The layers that read each value, where scaling is possible; those of one kind."""
    found: dict[str, list[Int8Layer]] = {}
    for layer in layers.values():
        if layer.is_linear:
            found.setdefault(layer.data, []).append(layer)
    values, nodes = named_values(model.graph), {str(node.name): node for node in model.graph}
    kept = {}
    for name, group in found.items():
        value = values[name]
        readers = [nodes[layer.node] for layer in group]
        convs = {layer.operator == "Conv" for layer in group}
        if len(convs) != 1 or rank(value) is None or _has_tied_weight(readers):
            continue
        if convs == {True}:
            fits = convolutions and all(_is_dense_or_depthwise(each) for each in readers)
            if fits and can_scale(value, readers, 1):
                kept[name] = group
        elif matrices and (name not in int8 or can_scale(value, readers, -1)):
            kept[name] = group
    return kept


def _has_tied_weight(readers: Iterable[ir.Node]) -> bool:
    """Whether a weight has other readers: a copy for each would need more memory."""
    given = list(readers)
    return any(
        use.node not in given for each in given if each.inputs[1] for use in each.inputs[1].uses()
    ) or len({each.inputs[1] for each in given}) < len(given)


def _is_dense_or_depthwise(node: ir.Node) -> bool:
    group = node.attributes.get("group")
    w = node.inputs[1]
    assert w is not None and w.shape is not None
    return group is None or group.value == 1 or w.shape[1] == 1


def _axis(group: Sequence[Int8Layer]) -> int:
    return 1 if group[0].operator == "Conv" else -1


def _in_axis(layer: Int8Layer) -> int:
    """The axis of the weight that belongs to the data's channels."""
    if layer.operator == "Conv":
        return 0 if layer.groups > 1 else 1
    return 1 - layer.channel_axis


def _choose(
    value: ir.Value, group: Sequence[Int8Layer], nodes: Mapping[str, ir.Node], measured: Channels
) -> Array | None:
    """The factors 1 / s of least error; None if the channels stay as they are."""
    greatest = np.maximum(np.abs(measured.low), np.abs(measured.high)).astype(np.float64)
    x = measured.rows
    if not np.isfinite(greatest).all() or greatest.max() <= 0:
        return None
    folded = can_scale(value, [nodes[layer.node] for layer in group], _axis(group))
    limit = clip_limit(value) if folded else None
    weights = [_as_matrix(nodes[layer.node], layer) for layer in group]
    if any(len(w) != x.shape[1] for w, _ in weights):
        return None  # a depthwise layer with several outputs for each input
    if all(layer.groups > 1 for layer in group):
        candidates = [_factors(greatest, None, 1.0, limit)]
    else:
        peak = np.max([np.abs(w).max(axis=1) for w, _ in weights], axis=0)
        if not peak.any():
            return None
        candidates = [_factors(greatest, peak, alpha, limit) for alpha in _ALPHAS]
    before = _error(x, weights, np.ones(x.shape[1]))
    best, least = None, before * (_WORTH_FOLDED if folded else _WORTH_ADDED)
    for factors in candidates:
        error = _error(x, weights, factors)
        if error < least:
            best, least = factors.astype(np.float32), error
    return best


def _factors(greatest: Array, peak: Array | None, alpha: float, limit: float | None) -> Array:
    """1 / s, with s = max|x|^alpha / max|w|^(1 - alpha); 1 for the channel of the largest data."""
    alive = greatest > greatest.max() * 1e-6
    inverse = np.where(alive, greatest, greatest.max()) ** -alpha
    if peak is not None:
        inverse *= np.maximum(peak, peak.max() * 1e-6) ** (1 - alpha)
    if limit is None:
        inverse /= np.exp(np.log(inverse).mean())
        return np.where(alive, np.clip(inverse, 1 / _LARGEST_FACTOR, _LARGEST_FACTOR), 1.0)
    # Clip cuts off at a fixed number: channels may grow up to it, those that reach it stay.
    inverse /= inverse[greatest.argmax()]
    room = np.maximum(0.98 * limit / np.maximum(greatest, 1e-6), 1.0)
    return np.where(alive, np.clip(inverse, 1.0, np.minimum(room, _LARGEST_FACTOR)), 1.0)


def _as_matrix(node: ir.Node, layer: Int8Layer) -> tuple[Array, int]:
    """A weight as (inputs, outputs), and how many columns share an output channel's scale."""
    assert node.inputs[1] is not None and node.inputs[1].const_value is not None
    w = np.asarray(node.inputs[1].const_value.numpy(), np.float32)
    if layer.operator == "Conv":
        if layer.groups > 1:
            return w.reshape(len(w), -1), 0
        inner = int(np.prod(w.shape[2:]))
        return np.moveaxis(w, 1, 0).reshape(w.shape[1], -1), inner
    return (w.T if layer.channel_axis == 0 else w), 1


def _error(x: Array, weights: Sequence[tuple[Array, int]], factors: Array) -> float:
    """The squared error of the layers' outputs if data and weights are rounded, by a sample."""
    scaled = x * factors
    low, high = min(float(scaled.min()), 0.0), max(float(scaled.max()), 0.0)
    step = max(high - low, 1e-10) / 255
    zero = np.rint(-low / step)
    rounded = (np.clip(np.rint(scaled / step) + zero, 0, 255) - zero) * step
    total = 0.0
    for w, inner in weights:
        if inner == 0:  # depthwise: each channel for itself, with a scale of its own
            error = (rounded / factors - x) ** 2
            total += float((error.mean(axis=0) * (w * w).sum(axis=1)).sum())
            continue
        w = w[:, :_ERROR_COLUMNS]
        changed = w / factors[:, None].astype(np.float32)
        columns = changed if inner == 1 else changed[:, : changed.shape[1] // inner * inner]
        if inner > 1:
            kernel = columns.reshape(len(columns), -1, inner)
            scales = np.repeat(channel_scales(kernel, 1, search=False), inner)
        else:
            scales = channel_scales(columns, 1, search=False)
        restored = dequantize(round_weight(columns, scales, 1), scales, 1)
        exact = x @ w[:, : columns.shape[1]]
        difference = rounded.astype(np.float32) @ restored - exact
        total += float((difference * difference).mean(axis=0).sum())
    return total


def _add_mul(
    model: ir.Model,
    value: ir.Value,
    readers: Sequence[ir.Node],
    factors: Array,
    names: Names,
) -> str:
    """Multiply a value only for these readers."""
    constant = add_initializer(model.graph, names.fresh(f"{value.name}/factors"), factors)
    node = ir.node("Mul", [value, constant], name=names.fresh(f"{value.name}/smooth"))
    result = node.outputs[0]
    result.name = names.fresh(f"{value.name}/smoothed")
    result.type, result.shape = value.type, value.shape
    model.graph.insert_before(readers[0], node)
    for reader in readers:
        reader.replace_input_with(0, result)
    return str(result.name)


def undo(model: ir.Model, each: Smoothed, layers: Mapping[str, Int8Layer], names: Names) -> None:
    """Remove a Mul that was added for layers which stay float, and restore their weights."""
    nodes = {str(node.name): node for node in model.graph}
    value = named_values(model.graph)[each.value]
    for name in each.layers:
        multiply_weight(nodes[name], 1, each.factors, _in_axis(layers[name]), names)
        nodes[name].replace_input_with(0, value)
