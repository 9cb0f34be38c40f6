"""QuantizedProducts: what a scan collects of products of 8-bit weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from onward.graph.int8_weights import CUT_OFF_FREE
from onward.graph.scan.onnx_messages import ScannedNode, ScannedTensor

_UINT8, _INT8 = 2, 3  # element types
_INT32_DATA, _RAW = 5, 9  # fields of a tensor
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


Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
Reader = Callable[[ScannedTensor], "bytes | memoryview"]  # of the bytes of a tensor in another file


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
    """What onnxruntime may compute wrong in products of quantized data.

    Attributes:
        has_misread_scales: it would take scales of a product's summed axis for those of its outputs
        has_float_weights: it would round float weights to 8 bits, with one scale, if it may
        tensors: 8-bit ones, and scales, by their names in the graph that is read and those around
            it: branches of If may have the same names
        views: values with the same numbers as a tensor, in another shape
        weights: those of products of integers
    """

    has_misread_scales: bool = False
    has_float_weights: bool = False
    tensors: dict[str, ScannedTensor] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)
    values: dict[str, _Dequantized] = field(default_factory=dict)
    weights: list[ScannedTensor] = field(default_factory=list)

    def add_tensor(self, name: str, tensor: ScannedTensor) -> None:
        if tensor.dtype in (_UINT8, _INT8) or len(tensor.dims) == 1:
            self.tensors[name] = tensor

    def add_node(self, node: ScannedNode) -> None:
        """Collect what a node makes of the values before it; nodes come in the graph's order."""
        name, inputs = node.op, node.inputs
        if name in _INTEGER_WEIGHTS:
            for place in _INTEGER_WEIGHTS[name]:
                self._add_weight(inputs[place] if place < len(inputs) else "")
        elif node.domain or not node.outputs:
            return
        elif name == "DequantizeLinear" and len(inputs) > 1:
            self.values[node.outputs[0]] = self._dequantized(node)
        elif name in _VIEWS and inputs and inputs[0] in self.values:
            given = self.values[inputs[0]]
            self.values[node.outputs[0]] = replace(given, axis=_moved_axis(node, given))
        elif name in _VIEWS and inputs:
            self.views[node.outputs[0]] = self.views.get(inputs[0], inputs[0])
        elif name in _PRODUCTS and len(inputs) > 1 and inputs[0] in self.values:
            self._product(node, self.values.get(inputs[1]))
        elif name == "Constant" and "value" in node.attributes:
            for tensor in node.attributes["value"].tensors:
                self.add_tensor(node.outputs[0], tensor)

    def has_large_weights(self, data: bytes, read: Reader | None = None) -> bool:
        """Whether sums of the products of a weight may exceed 16 bits.

        Args:
            data: the model
            read: reads a tensor's bytes from another file; without it, such tensors do not count
        """
        return any(_is_large(tensor, data, read) for tensor in self.weights)

    def _add_weight(self, name: str) -> None:
        tensor = self.tensors.get(self.views.get(name, name))
        if tensor is not None and tensor.dtype == _INT8:
            self.weights.append(tensor)

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
        self._add_weight(weight.weight)
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


def _is_large(tensor: ScannedTensor, data: bytes, read: Reader | None) -> bool:
    if tensor.external is not None:
        return read is not None and _is_beyond(np.frombuffer(read(tensor), np.int8))
    for number, start, end in tensor.data:
        if number == _RAW and end > start:
            return _is_beyond(np.frombuffer(data, np.int8, end - start, start))
        if number == _INT32_DATA and _is_beyond(_read_small(data, start, end)):
            return True
    return False


def _is_beyond(weights: Array) -> bool:
    largest, least = weights.max(initial=0), weights.min(initial=0)
    return int(largest) > CUT_OFF_FREE or int(least) < -CUT_OFF_FREE


def _read_small(data: bytes, start: int, end: int) -> Array:
    """Numbers of 8 bits in protobuf's form: one byte each, and ten of a negative one."""
    given = np.frombuffer(data, np.uint8, end - start, start)
    lasts = np.flatnonzero(given < 128)
    firsts = np.concatenate([[0], lasts[:-1] + 1])[: len(lasts)]
    lowest = (given[firsts] & 127).astype(np.int16)
    found: Array = np.where(lasts > firsts + 1, lowest - 128, lowest)
    return found
