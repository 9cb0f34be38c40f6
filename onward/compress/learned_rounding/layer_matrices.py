"""Quantized layers as matrices (inputs, outputs): MatMul, Gemm and Conv alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.compress.learned_rounding.quantized_weights import QuantizedWeight, replace_tensor
from onward.passes.fake_quantization import Array
from onward.passes.value_facts import attribute

_MOST_INPUTS = 6144  # of larger layers, H would not fit in memory


@dataclass(frozen=True, kw_only=True)
class LayerMatrix:
    """A layer's quantized weight as matrices (inputs, outputs), which broadcast.

    Attributes:
        source: the quantized weight
        layer: the node that multiplies by it
        weight, integers, zero, scale: the float weight, and what makes the quantized one
        low, high: the range of the integers
        shared_rows: the inputs that share a scale; empty where outputs share one, too
    """

    source: QuantizedWeight
    layer: ir.Node
    weight: Array
    integers: Array
    zero: Array
    scale: Array
    low: int
    high: int
    shared_rows: Sequence[slice]

    @property
    def inputs(self) -> int:
        return int(self.weight.shape[0])

    @property
    def data_name(self) -> str:
        """The name of the value that the layer multiplies the weight with."""
        data = self.layer.inputs[0]
        assert data is not None
        return str(data.name)


def matrices_of(
    weights: Sequence[QuantizedWeight], floats: Mapping[str, Array]
) -> list[LayerMatrix]:
    """The layers that have one reader and a float weight."""
    found = []
    for source in weights:
        readers = list(source.node.outputs[0].uses())
        weight = floats.get(source.integers_name)
        if weight is None or len(readers) != 1 or readers[0][1] != 1:
            continue
        layer = readers[0][0]
        if _is_readable(layer, weight):
            found.append(_matrix(source, layer, weight))
    return [each for each in found if each.inputs <= _MOST_INPUTS]


def read_rows(layer: LayerMatrix, data: Array) -> Array:
    """What a layer reads as rows, one for each output position: (rows, inputs)."""
    if layer.layer.op_type != "Conv":
        return np.asarray(data.reshape(-1, layer.inputs), np.float32)
    kernel = layer.source.integers().shape[2:]
    pads = list(attribute(layer.layer, "pads", [0] * 2 * len(kernel)))
    strides = list(attribute(layer.layer, "strides", [1] * len(kernel)))
    widths = [(0, 0), (0, 0), *zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)]
    padded = np.pad(data, widths)
    axes = tuple(range(2, data.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, axes)
    windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in strides))]
    return np.moveaxis(windows, 1, len(axes) + 1).reshape(-1, layer.inputs).astype(np.float32)


def write_matrix(layer: LayerMatrix, integers: Array, scale: Array) -> None:
    """Write integers, and scales where they are not shared between outputs, into the model."""
    source = layer.source
    q, s = source.node.inputs[0], source.node.inputs[1]
    assert q is not None and s is not None
    shape = source.integers().shape
    replace_tensor(q, _from_matrix(layer.layer, integers, shape))
    if layer.shared_rows and len(s.uses()) == 1:
        full = _from_matrix(layer.layer, scale, shape)
        axis = source.grid.axis % len(shape)
        if source.grid.block:
            picked = full.take(range(0, shape[axis], source.grid.block), axis)
        else:
            others = [0] * len(shape)
            picked = full[tuple(slice(None) if a == axis else others[a] for a in range(len(shape)))]
        replace_tensor(s, picked.reshape(source.scale.shape))


def _is_readable(layer: ir.Node, weight: Array) -> bool:
    if layer.domain != "":
        return False
    if layer.op_type == "MatMul":
        return weight.ndim == 2
    if layer.op_type == "Gemm":
        return weight.ndim == 2 and not attribute(layer, "transA", 0)
    if layer.op_type != "Conv" or attribute(layer, "group", 1) != 1:
        return False
    spread = set(attribute(layer, "dilations", [1])) == {1}
    return spread and attribute(layer, "auto_pad", "NOTSET") in ("NOTSET", b"NOTSET")


def _matrix(source: QuantizedWeight, layer: ir.Node, weight: Array) -> LayerMatrix:
    shape = weight.shape
    zero = np.zeros((), np.float32) if source.zero is None else source.zero
    full = [source.grid.spread(part, shape) for part in (zero, source.scale)]
    wide = [np.broadcast_to(part, shape) for part in (weight, source.integers(), *full)]
    matrices = [np.array(_to_matrix(layer, part), np.float32) for part in wide]
    return LayerMatrix(
        source=source,
        layer=layer,
        weight=matrices[0],
        integers=matrices[1],
        zero=matrices[2],
        scale=matrices[3],
        low=source.grid.low,
        high=source.grid.high,
        shared_rows=_shared_rows(source, layer, len(matrices[0])),
    )


def _shared_rows(source: QuantizedWeight, layer: ir.Node, inputs: int) -> list[slice]:
    """The inputs that share a scale, if each output has its own scales."""
    axis = source.grid.axis % max(len(source.integers().shape), 1)
    out = 0 if _is_out_first(layer) else 1
    if source.scale.size == 1 and source.scale.shape != (1, 1):
        return []
    if not source.grid.block:
        return [slice(0, inputs)] if axis == out else []
    if axis == out or layer.op_type == "Conv":
        return []
    block = source.grid.block
    return [slice(first, min(first + block, inputs)) for first in range(0, inputs, block)]


def _is_out_first(layer: ir.Node) -> bool:
    return layer.op_type == "Conv" or bool(attribute(layer, "transB", 0))


def _to_matrix(layer: ir.Node, array: Array) -> Array:
    return array.reshape(len(array), -1).T if _is_out_first(layer) else array


def _from_matrix(layer: ir.Node, matrix: Array, shape: tuple[int, ...]) -> Array:
    return matrix.T.reshape(shape) if _is_out_first(layer) else matrix
