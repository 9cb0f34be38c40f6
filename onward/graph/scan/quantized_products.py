"""QuantizedProducts: what a scan collects of products of 8-bit weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from onward.graph.int8_weights import CUT_OFF_FREE
from onward.graph.scan.onnx_messages import ScannedNode, ScannedTensor

_UINT8, _INT8 = 2, 3  # element types
_RAW = 9  # the field of a tensor's bytes
_VIEWS = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
_INTEGER_WEIGHTS = {  # operators that multiply integers, and the inputs that are weights
    "MatMulInteger": (1,),
    "ConvInteger": (1,),
    "QLinearMatMul": (3,),
    "QLinearConv": (3,),
    "QGemm": (3,),
    "DynamicQuantizeMatMul": (1,),
    "MatMulIntegerToFloat": (1,),
    "DynamicQuantizeLSTM": (1, 2),
}


@dataclass(slots=True)
class _Dequantized:
    """A value that DequantizeLinear makes, or the same numbers in another shape."""

    weight: str
    scales: int  # 1: one for the tensor
    axis: int | None  # of the scales; None: not known
    rank: int
    is_blocked: bool


@dataclass(slots=True)
class QuantizedProducts:
    """What onnxruntime may compute wrong in products of quantized data; names by graph.

    Attributes:
        has_misread_scales: it would take scales of a product's summed axis for those of its outputs
        has_float_weights: it would round float weights to 8 bits, with one scale, if it may
    """

    has_misread_scales: bool = False
    has_float_weights: bool = False
    tensors: dict[str, ScannedTensor] = field(default_factory=dict)  # 8-bit ones, and scales
    values: dict[str, _Dequantized] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)  # of products of integers

    def add_tensor(self, name: str, tensor: ScannedTensor) -> None:
        if tensor.dtype in (_UINT8, _INT8) or len(tensor.dims) == 1:
            self.tensors[name] = tensor

    def add_node(self, node: ScannedNode) -> None:
        """Collect what a node makes of the values before it; nodes come in the graph's order."""
        name, inputs = node.op, node.inputs
        if name in _INTEGER_WEIGHTS:
            places = _INTEGER_WEIGHTS[name]
            self.weights.update(inputs[place] for place in places if place < len(inputs))
        elif node.domain or not node.outputs:
            return
        elif name == "DequantizeLinear" and len(inputs) > 1:
            self.values[node.outputs[0]] = self._dequantized(node)
        elif name in _VIEWS and inputs and inputs[0] in self.values:
            given = self.values[inputs[0]]
            self.values[node.outputs[0]] = replace(given, axis=_moved_axis(node, given))
        elif name in _PRODUCTS and len(inputs) > 1 and inputs[0] in self.values:
            self._product(node, self.values.get(inputs[1]))
        elif name == "Constant" and "value" in node.attributes:
            for tensor in node.attributes["value"].tensors:
                self.add_tensor(node.outputs[0], tensor)

    def has_large_weights(self, data: bytes) -> bool:
        """Whether sums of the products of a weight may exceed 16 bits; `data` is the model."""
        found = (self.tensors[name] for name in self.weights if name in self.tensors)
        return any(_is_large(tensor, data) for tensor in found)

    def _dequantized(self, node: ScannedNode) -> _Dequantized:
        weight, scale = (self.tensors.get(name) for name in node.inputs[:2])
        rank, axis = 2 if weight is None else len(weight.dims), _number(node, "axis", 1)
        return _Dequantized(
            weight=node.inputs[0],
            scales=1 if scale is None else scale.size,
            axis=axis + rank if axis < 0 else axis,
            rank=rank,
            is_blocked=_number(node, "block_size", 0) > 0,
        )

    def _product(self, node: ScannedNode, weight: _Dequantized | None) -> None:
        if weight is None:
            self.has_float_weights |= node.op != "MatMul"
            return
        if weight.is_blocked or node.op == "ConvTranspose":
            return
        self.weights.add(weight.weight)
        is_conv = node.op == "Conv"
        out = 0 if is_conv or (node.op == "Gemm" and _number(node, "transB", 0) != 0) else 1
        if weight.scales > 1 and (weight.axis != out or (weight.rank != 2 and not is_conv)):
            self.has_misread_scales = True


def _moved_axis(node: ScannedNode, given: _Dequantized) -> int | None:
    """The axis of the scales behind a node that only moves numbers."""
    if node.op == "Identity" or given.axis is None:
        return given.axis
    if node.op != "Transpose":
        return None
    perm = node.attributes["perm"].ints if "perm" in node.attributes else []
    order = perm or list(range(given.rank))[::-1]
    return order.index(given.axis) if given.axis in order else None


def _number(node: ScannedNode, name: str, default: int) -> int:
    found = node.attributes.get(name)
    return default if found is None or found.number is None else found.number


def _is_large(tensor: ScannedTensor, data: bytes) -> bool:
    if tensor.dtype != _INT8:
        return False
    for number, start, end in tensor.data:
        if number == _RAW and end > start:
            weights = np.frombuffer(data, np.int8, end - start, start)
            return int(weights.max()) > CUT_OFF_FREE or int(weights.min()) < -CUT_OFF_FREE
    return False
