"""The quantized weights of a QDQ model: integer initializers behind DequantizeLinear.

for weight in find_weights(quantized): weight.steps()      # integers, zero point included
matching_floats(weights, original)                          # the float weights they came from
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.graph.dtypes import HALVES
from onward.passes.fake_quantization import Array, QuantizationGrid
from onward.passes.value_facts import attribute, input_of

_INTEGERS = {
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT4: (-8, 7),
    ir.DataType.UINT4: (0, 15),
    ir.DataType.INT2: (-2, 1),
    ir.DataType.UINT2: (0, 3),
}
_LAYERS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "Einsum")
_PASSED = ("Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Cast")
_SAMPLE = 4096  # elements that are compared to find the float weight of a quantized one
_LEAST_COSINE = 0.5
_LEAN = 0.25  # in steps: nearer to the border, the noise of first updates undoes a rounding


@dataclass(frozen=True, kw_only=True)
class QuantizedWeight:
    """A weight that a DequantizeLinear node makes from integers.

    Attributes:
        node: the DequantizeLinear
        grid: its integers, axis and blocks
        scale: the scales, as the node has them
        zero: the zero points as float32, of the scales' shape; None: all are 0
    """

    node: ir.Node
    grid: QuantizationGrid
    scale: Array
    zero: Array | None

    @property
    def integers_name(self) -> str:
        return str(_given(self.node, 0).name)

    @property
    def stored_scale(self) -> ir.Value:
        """The initializer of the scales, which may be of 16 bits and cast."""
        found = stored_scale(_given(self.node, 1))
        assert found is not None
        return found

    def integers(self) -> Array:
        """The stored integers as float32."""
        return array_of(_given(self.node, 0)).astype(np.float32)

    def dequantized(self) -> Array:
        """The weight that the node makes."""
        q = self.integers()
        zero = 0.0 if self.zero is None else self.grid.spread(self.zero, q.shape)
        return np.asarray((q - zero) * self.grid.spread(self.scale, q.shape), np.float32)

    def steps_of(self, weight: Array) -> Array:
        """A float weight in steps of the scales, held in the cell of each stored integer.

        So its rounding is what is stored, also where that is not the nearest integer (GPTQ).
        """
        q = self.integers()
        scale = self.grid.spread(self.scale, q.shape)
        zero = 0.0 if self.zero is None else self.grid.spread(self.zero, q.shape)
        exact = weight / np.where(scale == 0, 1.0, scale) + zero
        return np.asarray(q + np.clip(exact - q, -_LEAN, _LEAN), np.float32)


def find_weights(model: ir.Model) -> list[QuantizedWeight]:
    """The quantized weights of linear layers of the main graph that have float32 scales."""
    return [
        weight
        for node in model.graph
        if (weight := weight_of(node)) is not None and _feeds_layer(node.outputs[0])
    ]


def _range_of(q: ir.TensorProtocol) -> tuple[int, int]:
    """The integers that a weight may have: products of larger ones may not be exact, see int8."""
    if q.dtype == ir.DataType.INT8 and np.abs(q.numpy().astype(np.int16)).max(initial=0) <= 64:
        return -64, 64
    return _INTEGERS[q.dtype]


def weight_of(node: ir.Node) -> QuantizedWeight | None:
    """The weight that a node dequantizes; None if it is another node, or its data is computed."""
    if node.op_type != "DequantizeLinear" or node.domain != "":
        return None
    q, scale, zero = node.inputs[0], input_of(node, 1), input_of(node, 2)
    stored = None if scale is None else stored_scale(scale)
    if q is None or stored is None or not is_constant(q):
        return None
    if q.const_value is None or q.const_value.dtype not in _INTEGERS:
        return None
    if zero is not None and not is_constant(zero):
        return None
    low, high = _range_of(q.const_value)
    shift = None if zero is None else array_of(zero).astype(np.float32)
    return QuantizedWeight(
        node=node,
        grid=QuantizationGrid(
            low=low,
            high=high,
            axis=int(attribute(node, "axis", 1)),
            block=int(attribute(node, "block_size", 0)),
        ),
        scale=array_of(stored).astype(np.float32),
        zero=shift if shift is not None and shift.any() else None,
    )


def matching_floats(weights: Sequence[QuantizedWeight], original: ir.Model) -> dict[str, Array]:
    """The float weight of each quantized one, by the name of its integers, where there is one.

    Names and shapes differ between quantizers, so it is the weight of the same size that is most
    alike: as it is, as a matrix, or turned.
    """
    known: dict[int, list[Array]] = {}
    for value in float_constants(original):
        known.setdefault(value.size, []).append(value)
    found: dict[str, Array] = {}
    for weight in weights:
        dequantized = weight.dequantized()
        best, likeness = None, _LEAST_COSINE
        for value in known.get(dequantized.size, []):
            for candidate in _arranged(value, dequantized.shape):
                cosine = _cosine(candidate, dequantized)
                if cosine > likeness:
                    best, likeness = candidate, cosine
        if best is not None:
            found[weight.integers_name] = best
    return found


def _arranged(value: Array, shape: tuple[int, ...]) -> list[Array]:
    """An array in a shape: its elements in their order, and a matrix turned."""
    turned = value.ndim == 2 and value.shape == shape[::-1]
    return [value.reshape(shape), *([value.T] if turned else [])]


def float_constants(model: ir.Model) -> list[Array]:
    """The float32 initializers and Constant nodes of a model that have two axes or more."""
    tensors = [value.const_value for value in model.graph.initializers.values()]
    tensors += [
        node.attributes["value"].as_tensor()
        for node in model.graph
        if node.op_type == "Constant" and "value" in node.attributes
    ]
    return [
        tensor.numpy()
        for tensor in tensors
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT and len(tensor.shape) > 1
    ]


def stored_scale(value: ir.Value) -> ir.Value | None:
    """The initializer of float32 scales: themselves, or 16-bit ones behind Cast; None: neither."""
    if is_constant(value):
        return value if array_of(value).dtype == np.float32 else None
    cast = value.producer()
    if cast is None or cast.op_type != "Cast" or cast.domain or cast.inputs[0] is None:
        return None
    widened = attribute(cast, "to", 0) == ir.DataType.FLOAT
    source = cast.inputs[0]
    return source if widened and is_constant(source) and source.dtype in HALVES else None


def is_constant(value: ir.Value) -> bool:
    """Whether a value is an initializer that no feed replaces."""
    return value.is_initializer() and value.const_value is not None and not value.is_graph_input()


def array_of(value: ir.Value) -> Array:
    assert value.const_value is not None
    return value.const_value.numpy()


def replace_tensor(value: ir.Value, array: Array) -> None:
    """Give an initializer other numbers of its own type."""
    old = value.const_value
    assert old is not None
    value.const_value = ir.tensor(array.astype(old.dtype.numpy()), dtype=old.dtype, name=value.name)


def _feeds_layer(value: ir.Value) -> bool:
    """Whether a linear layer reads a value, directly or behind nodes that move its elements."""
    for node, _ in value.uses():
        if node.op_type in _LAYERS:
            return True
        if node.op_type in _PASSED and _feeds_layer(node.outputs[0]):
            return True
    return False


def _given(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _cosine(a: Array, b: Array) -> float:
    step = max(1, a.size // _SAMPLE)
    x, y = a.ravel()[::step].astype(np.float64), b.ravel()[::step].astype(np.float64)
    lengths = np.linalg.norm(x) * np.linalg.norm(y)
    return float(x @ y / lengths) if lengths else 0.0
