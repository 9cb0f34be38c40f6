"""Refuse nodes whose types OpenVINO accepts but computes in other types.

It computes float64 in float32, int64 in int32, and integer arithmetic in float32: 2**24 + 1 is
2**24. Sizes and positions in tensors stay below that, and so arithmetic on them is allowed; on
integers from anywhere else it is not.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.operators import COMPARISONS, REARRANGING
from onward.graph.scopes import bodies
from onward.providers.defect import Platform
from onward.providers.openvino.defects import defect

_T = ir.DataType
_TAKEN = {
    _T.FLOAT, _T.FLOAT16, _T.BOOL,
    _T.INT8, _T.UINT8, _T.INT16, _T.UINT16, _T.INT32, _T.INT64,
}  # fmt: skip
_NARROW = {_T.INT8, _T.UINT8, _T.INT16, _T.UINT16}
_WIDE = {_T.INT32, _T.INT64}
_PACKED = {_T.INT4, _T.UINT4}
_FLOATS = {_T.FLOAT, _T.FLOAT16}
_EXACT = 2**24  # whole numbers up to here are exact in float32

# Operators that only move integers: OpenVINO keeps all 32 bits of them.
_MOVES = {
    "Cast", "Compress", "Concat", "ConstantOfShape", "DepthToSpace", "EyeLike", "Expand", "Flatten",
    "Gather", "GatherElements", "GatherND", "Identity", "If", "OneHot", "Pad", "Reshape",
    "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
}  # fmt: skip
# Operators whose integers count or point at elements.
_COUNTS = {"ArgMax", "ArgMin", "MaxPool", "NonZero", "Shape", "Size", "TopK"}
_QUANTIZERS = {"DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"}
_SUMS = {"ConvInteger", "MatMulInteger"}  # exact enough where the sum becomes a float next

UNKNOWN, SMALL, SIZE = 0, 1, 2  # any integer; below 2**24 either way; and not below 0


class Refusals:
    """Reasons to refuse nodes to OpenVINO; caches what is known about integer values."""

    def __init__(self, place: Platform) -> None:
        self._place = place
        self._levels: dict[ir.Value, int] = {}

    def reason(self, node: ir.Node) -> str | None:
        """Why a node, or one in its subgraphs, must run in another provider; None: no reason."""
        why = _types(node) or defect(node, self._place) or self._integers(node)
        if why is not None:
            return why
        inner = (self.reason(each) for body in bodies(node) for each in body)
        return next(filter(None, inner), None)

    def _integers(self, node: ir.Node) -> str | None:
        if node.op_type in _MOVES:
            return None
        if node.op_type in _SUMS:
            return _only_becomes_float(node)
        made = {value.dtype for value in node.outputs if value.name}
        if made & _NARROW and node.op_type not in _QUANTIZERS:
            return "arithmetic of 8 and 16 bit integers is rounded and clipped, not wrapped"
        wide = [v for v in node.inputs if v is not None and v.dtype in _WIDE]
        if not made & (_WIDE | {_T.BOOL}) or node.op_type in _COUNTS:
            return None
        levels = [self._level(value) for value in wide]
        if node.op_type in COMPARISONS and max(levels, default=SIZE) >= SMALL:
            return None  # rounding a number does not take it past one that is exact
        lowest = min(levels, default=SIZE)
        if lowest == UNKNOWN:
            return "integers are computed in float32, exact to 2**24, and nothing bounds these"
        if node.op_type in ("Div", "Mod") and lowest < SIZE:
            return "integer division rounds down, where ONNX rounds towards zero"
        return None

    def _level(self, value: ir.Value) -> int:
        """The known range of an integer value: UNKNOWN, SMALL or SIZE."""
        if value not in self._levels:
            self._levels[value] = UNKNOWN  # stops the recursion if an invalid graph has a cycle
            self._levels[value] = self._find_level(value)
        return self._levels[value]

    def _find_level(self, value: ir.Value) -> int:
        if value.dtype in _NARROW:
            return SMALL
        if value.dtype == _T.BOOL:
            return SIZE
        if value.dtype not in _WIDE:
            return UNKNOWN
        if value.const_value is not None and not value.is_graph_input():
            return _level_of(value.const_value.numpy())
        node = value.producer()
        if node is None or bodies(node):
            return UNKNOWN
        if node.op_type in _COUNTS:
            return SIZE if node.op_type != "TopK" or value.index() == 1 else UNKNOWN
        if node.op_type == "ConstantOfShape":
            return _level_of(node.attributes["value"].as_tensor().numpy())
        data = [v for v in node.inputs if v is not None and v.dtype != _T.BOOL]
        if node.op_type in REARRANGING:
            data = data[:1]
        level = min((self._level(v) for v in data), default=SIZE)
        return min(level, SMALL) if node.op_type in ("Sub", "Neg") else level


def _types(node: ir.Node) -> str | None:
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name:
            continue
        if not isinstance(value.type, ir.TensorType):
            return f"it takes tensors only, not {value.type}"
        if value.dtype not in _TAKEN and not _is_stored_weight(node, value):
            return (
                f"{value.dtype.name} would be computed in another type"
                if value.dtype
                else "unknown type"
            )
        if value.dtype == _T.INT64 and value.const_value is not None and node.op_type != "Slice":
            numbers = value.const_value.numpy()
            if numbers.size and not _is_int32(numbers):
                return f"{value.name!r} has integers of more than 32 bits"
    return None


def _is_stored_weight(node: ir.Node, value: ir.Value) -> bool:
    """Whether a value is a constant of 4 bits that becomes float: products read it packed."""
    is_constant = value.const_value is not None and not value.is_graph_input()
    return node.op_type == "DequantizeLinear" and is_constant and value.dtype in _PACKED


def _only_becomes_float(node: ir.Node) -> str | None:
    (sum_,) = node.outputs
    casts = [use.node for use in sum_.uses()]
    if sum_.is_graph_output() or any(each.op_type != "Cast" for each in casts):
        return "sums of integers are computed in float32"
    if any(each.outputs[0].dtype not in _FLOATS for each in casts):
        return "sums of integers are computed in float32"
    return None


def _is_int32(numbers: np.ndarray) -> bool:
    return int(numbers.min()) >= -(2**31) and int(numbers.max()) < 2**31


def _level_of(numbers: np.ndarray) -> int:
    if numbers.dtype.kind not in "iub" or not numbers.size:
        return UNKNOWN if numbers.size else SIZE
    low, high = int(numbers.min()), int(numbers.max())
    if low <= -_EXACT or high >= _EXACT:
        return UNKNOWN
    return SIZE if low >= 0 else SMALL
