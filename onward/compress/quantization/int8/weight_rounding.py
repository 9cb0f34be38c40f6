"""Round weights to 8 bits so that layers' outputs err little, not the weights themselves.

With D the change of a weight and x a layer's data, the output errs by D x. Its mean D mean(x) goes
into the bias; what is left, tr(D cov(x) D^T), is made small by GPTQ: inputs are rounded one after
the other, and those that follow make up for the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.quantization.int8.int8_layers import Int8Layer
from onward.compress.quantization.int8.statistics import named_values, open_session
from onward.compress.quantization.int8.weight_scales import channel_scales
from onward.compress.quantization.weights.gptq import invert_factor
from onward.graph.graph_ops import GraphOps, extend
from onward.graph.int8_weights import LARGEST
from onward.passes.drop_unused import drop_unused
from onward.passes.value_facts import Array

_LARGEST_SUMS = 256 << 20  # bytes of moments that are measured at a time
_MOST_INPUTS = 2048  # of an output: the moments of more would take longer than they are worth
_WINDOW_ROWS = 2  # rows of a batch whose windows are read, where each channel has its own moments
_INPUTS = 128  # inputs whose errors are passed on at once to those behind them
_WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")

Key = tuple[object, ...]  # layers with the same key multiply the same rows


@dataclass(frozen=True)
class InputMoments:
    """The mean (groups, inputs) and the covariance (groups, inputs, inputs) of a layer's data."""

    mean: Array
    covariance: Array


@dataclass(frozen=True)
class Rounded:
    """A weight in 8 bits, its scales, and the mean error of outputs that the bias takes back."""

    weight: Array
    scales: Array
    correction: Array


def round_layers(
    model: ir.Model,
    layers: Mapping[str, Int8Layer],
    data: Calibration,
    largest: int = LARGEST,
) -> Iterator[tuple[str, Rounded]]:
    """Round the weights of linear layers; those with too many inputs are left out.

    Args:
        model: the model
        layers: by the node's name; no two of them share a weight
        data: what the layers' inputs are measured with; memory does not grow with its batches
        largest: the largest number that rounded weights may have
    """
    nodes = {str(node.name): node for node in model.graph}
    alike: dict[Key, list[Int8Layer]] = {}
    for layer in layers.values():
        if _input_count(nodes[layer.node], layer) <= _MOST_INPUTS:
            alike.setdefault(_key(nodes[layer.node], layer), []).append(layer)
    waiting = list(alike.values())
    while waiting:
        part, size = list[list[Int8Layer]](), 0
        while waiting and (not part or size + _bytes(nodes, waiting[0][0]) <= _LARGEST_SUMS):
            size += _bytes(nodes, waiting[0][0])
            part.append(waiting.pop(0))
        measured = measure_moments(model, [group[0] for group in part], data)
        for group in part:
            moments = measured.pop(group[0].node)
            factor = np.stack([invert_factor(each) for each in moments.covariance])
            for layer in group:
                weight = _array(nodes[layer.node])
                yield layer.node, _round(weight, layer, moments, factor, largest)


def measure_moments(
    model: ir.Model, layers: list[Int8Layer], data: Calibration
) -> dict[str, InputMoments]:
    """The moments of the data of layers, by the name of the node."""
    copy = model.clone()
    values, nodes = named_values(copy.graph), {str(node.name): node for node in copy.graph}
    op, results = extend(copy), list[ir.Value]()
    for layer in layers:
        rows = _rows(op, values[layer.data], nodes[layer.node], layer)
        products = op.MatMul(rows, op.Transpose(rows, perm=[0, 1, 3, 2]))
        results.append(op.ReduceSum(products, np.array([0]), keepdims=0))
        results.append(op.ReduceSum(rows, np.array([0, 3]), keepdims=0))
        results.append(op.Size(rows))
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(results)
    session = open_session(drop_unused(copy))
    used = {each.name for each in session.get_inputs()}
    sums: list[Array] = []
    for feeds in data.batches():
        found = session.run(None, {name: feed for name, feed in feeds.items() if name in used})
        sums = sums or [np.zeros(np.shape(each)) for each in found]
        for total, each in zip(sums, found, strict=True):
            total += each
    moments = {}
    for place, layer in enumerate(layers):
        products, total, size = sums[3 * place : 3 * place + 3]
        count = max(float(size) / total.size, 1.0)
        mean = total / count
        moments[layer.node] = InputMoments(
            mean, products / count - mean[:, :, None] * mean[:, None, :]
        )
    return moments


def _rows(op: GraphOps, x: ir.Value, node: ir.Node, layer: Int8Layer) -> ir.Value:
    """What a layer's weight is multiplied with, (batch, groups, inputs, rows)."""
    inputs = _input_count(node, layer)
    if layer.operator != "Conv":
        flat = op.Transpose(op.Reshape(x, np.array([-1, inputs])), perm=[1, 0])
        return op.Reshape(flat, np.array([1, 1, inputs, -1]))  # type: ignore[no-any-return]
    kernel = _array(node).shape[2:]
    window = {name: node.attributes[name] for name in _WINDOW if name in node.attributes}
    if _is_plain(node):
        return op.Reshape(x, np.array([0, layer.groups, inputs, -1]))  # type: ignore[no-any-return]
    if layer.groups > 1:
        x = op.Slice(x, np.array([0]), np.array([_WINDOW_ROWS]), np.array([0]))
    channels, size = layer.groups * inputs // math.prod(kernel), math.prod(kernel)
    one_hot = np.tile(np.eye(size, dtype=np.float32), (channels, 1))
    attributes = {name: each.value for name, each in window.items()} | {"group": channels}
    weight = op.constant(one_hot.reshape(channels * size, 1, *kernel))
    windows = op.node("Conv", [x, weight], attributes)
    return op.Reshape(windows, np.array([0, layer.groups, inputs, -1]))  # type: ignore[no-any-return]


def _is_plain(node: ir.Node) -> bool:
    """Whether a convolution reads each position by itself, and all of them."""
    strides, pads = node.attributes.get("strides"), node.attributes.get("pads")
    return (
        math.prod(_array(node).shape[2:]) == 1
        and (strides is None or set(strides.value) == {1})
        and (pads is None or set(pads.value) == {0})
    )


def _round(
    weight: Array, layer: Int8Layer, moments: InputMoments, factor: Array, largest: int
) -> Rounded:
    scales = channel_scales(weight, layer.channel_axis, largest=largest)
    exact = _by_group(weight, layer)  # (groups, outputs, inputs)
    steps = scales.reshape(*exact.shape[:2], 1)
    plain = np.clip(np.rint(exact / steps), -largest, largest)
    learned = _pass_errors_on(exact, steps, factor, largest)
    before = _errors(plain * steps - exact, moments)
    after = _errors(learned * steps - exact, moments)
    best = np.where((after < before)[..., None], learned, plain)
    correction = ((exact - best * steps) @ moments.mean[:, :, None]).reshape(-1)
    if layer.operator == "Conv" or layer.channel_axis == 0:
        shaped = best.reshape(weight.shape)
    else:
        shaped = best[0].T
    return Rounded(np.ascontiguousarray(shaped, np.int8), scales, correction)


def _pass_errors_on(exact: Array, steps: Array, factor: Array, largest: int) -> Array:
    """Round one input after the other; the inputs that follow make up for the errors."""
    rest = np.array(exact.transpose(0, 2, 1), np.float32, order="C")  # (groups, inputs, outputs)
    step = steps.transpose(0, 2, 1)[:, 0]
    whole, size = np.empty_like(rest), rest.shape[1]
    for start in range(0, size, _INPUTS):
        end = min(start + _INPUTS, size)
        errors = np.empty((len(rest), end - start, rest.shape[2]), np.float32)
        for k in range(start, end):
            whole[:, k] = np.clip(np.rint(rest[:, k] / step), -largest, largest)
            error = (rest[:, k] - whole[:, k] * step) / factor[:, k, k, None]
            errors[:, k - start] = error
            rest[:, k + 1 : end] -= factor[:, k, k + 1 : end, None] * error[:, None]
        rest[:, end:] -= factor[:, start:end, end:].transpose(0, 2, 1) @ errors
    return whole.transpose(0, 2, 1)


def _errors(change: Array, moments: InputMoments) -> Array:
    """The variance of each output's error, (groups, outputs)."""
    return np.asarray(((change @ moments.covariance) * change).sum(axis=2))


def _by_group(weight: Array, layer: Int8Layer) -> Array:
    """A weight as (groups, outputs, inputs)."""
    if layer.operator != "Conv":
        return (weight if layer.channel_axis == 0 else weight.T)[None]
    return weight.reshape(layer.groups, len(weight) // layer.groups, -1)


def _input_count(node: ir.Node, layer: Int8Layer) -> int:
    """How many numbers of data an output sums."""
    shape = _array(node).shape
    return math.prod(shape[1:]) if layer.operator == "Conv" else shape[1 - layer.channel_axis]


def _bytes(nodes: Mapping[str, ir.Node], layer: Int8Layer) -> int:
    return 12 * layer.groups * _input_count(nodes[layer.node], layer) ** 2


def _key(node: ir.Node, layer: Int8Layer) -> Key:
    if layer.operator != "Conv":
        return (layer.data,)
    window = (str(node.attributes[name].value) for name in _WINDOW if name in node.attributes)
    return (layer.data, layer.groups, _array(node).shape[1:], *window)


def _array(node: ir.Node) -> Array:
    weight = node.inputs[1]
    assert weight is not None and weight.const_value is not None
    return np.asarray(weight.const_value.numpy())
