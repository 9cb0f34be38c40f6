"""Where OpenVINO departs from the ONNX standard (2026.4, CPU), found by comparing answers.

Such a node goes to the next provider. Each row is held by a test that fails when OpenVINO mends
it, so that the row can go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx_ir as ir

from onward.graph.scopes import bodies

Law = Callable[[ir.Node], str | None]

_ANY: dict[str, str] = {
    "DFT": "the axis is mistaken",
    "Log": "log(0) is -88, and of what is negative a number",
    "Loop": "a run cannot be ended inside it",
    "ReduceLogSum": "log(0) is -88",
    "Scan": "a run cannot be ended inside it",
    "Softplus": "it is up to 4e-4 away",
    "ThresholdedRelu": "results end at 255 where sizes are free",
}


def defect(node: ir.Node) -> str | None:
    """What OpenVINO gets wrong about this node, or None."""
    if node.domain not in ("", "ai.onnx"):
        return None
    law = _SOME.get(node.op_type)
    special = law(node) if law is not None else None
    return _ANY.get(node.op_type) or special or _empty(node) or _inside(node)


def _empty(node: ir.Node) -> str | None:
    """An empty constant; but for Resize's second, which hardly any mode reads."""
    for number, value in enumerate(node.inputs):
        constant = None if value is None else value.const_value
        if constant is not None and constant.size == 0 and (node.op_type, number) != ("Resize", 1):
            return "an empty constant is read as the number 0"
    return None


def _inside(node: ir.Node) -> str | None:
    if any(True for body in bodies(node) for _ in merged_casts(body)):
        return "a Cast in a subgraph would be merged into the next node"
    return None


def merged_casts(graph: ir.Graph) -> Iterator[ir.Value]:
    """Results of Casts that OpenVINO would merge with the arithmetic that reads them.

    Where sizes are free, it then computes in the type before the Cast: 0.5 * Cast(6) is 0. It does
    not where the Cast's result has another reader, or is a result of the model.
    """
    for node in graph:
        value = node.outputs[0]
        if node.op_type != "Cast" or value.is_graph_output():
            continue
        uses = list(value.uses())
        if len(uses) == 1 and uses[0].idx > 0 and uses[0].node.op_type in _MERGERS:
            yield value


_MERGERS = {"Add", "Div", "Max", "Mean", "Min", "Mod", "Mul", "PRelu", "Pow", "Sub", "Sum"}


def _value(node: ir.Node, name: str, default: Any = None) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


def _input(node: ir.Node, number: int) -> ir.Value | None:
    return node.inputs[number] if len(node.inputs) > number else None


def _attention(node: ir.Node) -> str | None:
    if len(node.outputs) > 3 and node.outputs[3].name:
        return "the fourth output leaves out part of the mask"
    if _input(node, 6) is not None:
        return "rows without keys are averages, not zero"
    heads = [v.shape[1] for v in node.inputs[:2] if v is not None and v.shape and len(v.shape) == 4]
    if not all(isinstance(size, int) for size in heads):
        return "it must know how many heads there are"
    return None


def _recurrent(node: ir.Node) -> str | None:
    if _value(node, "layout", 0):
        return "results of layout 1 are in another order"
    return "peepholes are left out" if _input(node, 7) is not None else None


def _dilated(node: ir.Node) -> str | None:
    if any(step > 1 for step in _value(node, "dilations", ())):
        return "dilations fail while they run where sizes are free"
    return None


def _max_pool(node: ir.Node) -> str | None:
    """The last window of ceil_mode must not begin in the padding."""
    strides, kernel = _value(node, "strides", ()), _value(node, "kernel_shape", ())
    beyond = any(_value(node, "pads", ())) or any(map(int.__gt__, strides, kernel))
    if _value(node, "ceil_mode", 0) and beyond:
        return "ceil_mode counts windows that begin in the padding"
    return _dilated(node)


def _prelu(node: ir.Node) -> str | None:
    x, slope = node.inputs[0], node.inputs[1]
    ranks = [len(v.shape) if v is not None and v.shape is not None else None for v in (x, slope)]
    if ranks[1] == 1 and ranks[0] != 1:
        return "one slope for each of the last sizes is read as one for each channel"
    return None


def _qlinear(node: ir.Node) -> str | None:
    if node.outputs[0].dtype == ir.DataType.INT8:
        return "int8 results are one too high where they are negative"
    return None


def _quantize(node: ir.Node) -> str | None:
    if node.outputs[0].dtype in (ir.DataType.INT16, ir.DataType.UINT16):
        return "results of 16 bits are cut off at 8"
    scale = node.inputs[1]
    if scale is not None and scale.const_value is None and scale.shape and len(scale.shape) > 0:
        return "scales of an axis that are computed fail while they run"
    return None


def _reduce(node: ir.Node) -> str | None:
    data = node.inputs[0]
    if data is not None and data.shape is not None and 0 in tuple(data.shape):
        return "the largest of nothing is a number, not -inf"
    return None


def _resize(node: ir.Node) -> str | None:
    if _value(node, "antialias", 0) or _value(node, "exclude_outside", 0):
        return "antialias and exclude_outside are ignored"
    if _value(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return "keep_aspect_ratio_policy is ignored"
    mode = _value(node, "coordinate_transformation_mode", "half_pixel")
    if mode == "align_corners" and _input(node, 2) is not None:
        return "align_corners with scales rounds the output size before it maps coordinates"
    if _value(node, "mode", "nearest") == "nearest" and mode != "asymmetric":
        return "the nearest element is another one"
    if any(each is not None and each.is_graph_input() for each in map(_input, [node] * 2, (2, 3))):
        return "sizes that are fed may be 0, which ends the process"
    return None


def _roi_align(node: ir.Node) -> str | None:
    return "the maximum is of other points" if _value(node, "mode", "avg") == "max" else None


def _shape(node: ir.Node) -> str | None:
    end = _value(node, "end")
    if end is not None and end >= 0 and _value(node, "start", 0) > end:
        return "an empty range is not empty"
    return None


def _split(node: ir.Node) -> str | None:
    data, count = node.inputs[0], _value(node, "num_outputs")
    if count is None or data is None or data.shape is None:
        return None
    size = data.shape[_value(node, "axis", 0)]
    if not isinstance(size, int) or size % count:
        return "parts of unequal sizes fail while they run"
    return None


def _tile(node: ir.Node) -> str | None:
    repeats = _input(node, 1)
    if repeats is None or repeats.const_value is None or repeats.is_graph_input():
        return "repeats that are computed read memory that is not the tensor's"
    return None


_SOME: dict[str, Law] = {
    "Attention": _attention,
    "AveragePool": _dilated,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "LpPool": _dilated,
    "MaxPool": _max_pool,
    "PRelu": _prelu,
    "QLinearMatMul": _qlinear,
    "QuantizeLinear": _quantize,
    "RNN": _recurrent,
    "ReduceLogSumExp": _reduce,
    "ReduceMax": _reduce,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "Shape": _shape,
    "Split": _split,
    "Tile": _tile,
}
