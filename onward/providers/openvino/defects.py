"""Defects of OpenVINO's CPU plugin (2026.4): operators that differ from the ONNX standard.

Such nodes run in the next provider, on the processors where the defect was seen. Each row has a
test that fails when OpenVINO fixes the defect, so that the row can be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx_ir as ir

from onward.graph.scopes import bodies
from onward.providers.defect import ARM, X86, Defect, Platform
from onward.providers.openvino.scaled_weights import has_scales_of_summed_inputs

_SEEN_IN = "2026.4"


def defect(node: ir.Node, place: Platform) -> str | None:
    """The known defect of OpenVINO that affects this node on this platform, or None."""
    if node.domain not in ("", "ai.onnx"):
        return None
    for row in ROWS.get(node.op_type, ()):
        if row.holds(place) and row.when(node):
            return row.reason
    return _empty_constant(node) or _merged_cast_inside(node)


def _empty_constant(node: ir.Node) -> str | None:
    """The defect of empty constants; Resize's second input is allowed, as few modes read it."""
    for number, value in enumerate(node.inputs):
        constant = None if value is None else value.const_value
        if constant is not None and constant.size == 0 and (node.op_type, number) != ("Resize", 1):
            return "an empty constant is read as the number 0"
    return None


def _merged_cast_inside(node: ir.Node) -> str | None:
    if any(True for body in bodies(node) for _ in merged_casts(body)):
        return "a Cast in a subgraph would be merged into the next node"
    return None


def merged_casts(graph: ir.Graph) -> Iterator[ir.Value]:
    """Results of Casts that OpenVINO would merge with the arithmetic that reads them.

    With dynamic shapes, it then computes in the type before the Cast: 0.5 * Cast(6) is 0. It does
    not merge if the Cast's result has another reader, or is an output of the model.
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


def _is_asked_for_products(node: ir.Node) -> bool:
    return len(node.outputs) > 3 and bool(node.outputs[3].name)


def _counts_keys(node: ir.Node) -> bool:
    return _input(node, 6) is not None


def _hides_heads(node: ir.Node) -> bool:
    heads = [v.shape[1] for v in node.inputs[:2] if v is not None and v.shape and len(v.shape) == 4]
    return not all(isinstance(size, int) for size in heads)


def _is_batch_first(node: ir.Node) -> bool:
    return bool(_value(node, "layout", 0))


def _has_peepholes(node: ir.Node) -> bool:
    return _input(node, 7) is not None


def _is_dilated(node: ir.Node) -> bool:
    return any(step > 1 for step in _value(node, "dilations", ()))


def _may_begin_in_padding(node: ir.Node) -> bool:
    """Whether the last window of ceil_mode may begin in the padding, which ONNX excludes."""
    strides, kernel = _value(node, "strides", ()), _value(node, "kernel_shape", ())
    beyond = any(_value(node, "pads", ())) or any(map(int.__gt__, strides, kernel))
    return bool(_value(node, "ceil_mode", 0)) and beyond


def _has_slopes_of_last_axis(node: ir.Node) -> bool:
    x, slope = node.inputs[0], node.inputs[1]
    ranks = [len(v.shape) if v is not None and v.shape is not None else None for v in (x, slope)]
    return ranks[1] == 1 and ranks[0] != 1


def _gives(*types: ir.DataType) -> Callable[[ir.Node], bool]:
    return lambda node: node.outputs[0].dtype in types


def _computes_scales(node: ir.Node) -> bool:
    scale = node.inputs[1]
    return (
        scale is not None
        and scale.const_value is None
        and scale.shape is not None
        and len(scale.shape) > 0
    )


def _is_of_nothing(node: ir.Node) -> bool:
    data = node.inputs[0]
    return data is not None and data.shape is not None and 0 in tuple(data.shape)


def _coordinates(node: ir.Node) -> str:
    return str(_value(node, "coordinate_transformation_mode", "half_pixel"))


def _has_settings_that_are_ignored(node: ir.Node) -> bool:
    return bool(_value(node, "antialias", 0) or _value(node, "exclude_outside", 0))


def _keeps_aspect_ratio(node: ir.Node) -> bool:
    return bool(_value(node, "keep_aspect_ratio_policy", "stretch") != "stretch")


def _aligns_corners_by_scales(node: ir.Node) -> bool:
    return _coordinates(node) == "align_corners" and _input(node, 2) is not None


def _takes_nearest(node: ir.Node) -> bool:
    return _value(node, "mode", "nearest") == "nearest" and _coordinates(node) != "asymmetric"


def _rounds_up(node: ir.Node) -> bool:
    nearest = _value(node, "mode", "nearest") == "nearest"
    return nearest and bool(_value(node, "nearest_mode") == "round_prefer_ceil")


def _is_fed_sizes(node: ir.Node) -> bool:
    sizes = map(_input, [node] * 2, (2, 3))
    return any(each is not None and each.is_graph_input() for each in sizes)


def _computes_blocks(node: ir.Node) -> bool:
    return any(_is_computed(node, number) for number in (1, 2))


def _takes_maximum(node: ir.Node) -> bool:
    return bool(_value(node, "mode", "avg") == "max")


def _is_empty_range(node: ir.Node) -> bool:
    end = _value(node, "end")
    return end is not None and end >= 0 and _value(node, "start", 0) > end


def _may_be_uneven(node: ir.Node) -> bool:
    data, count = node.inputs[0], _value(node, "num_outputs")
    if count is None or data is None or data.shape is None:
        return False
    size = data.shape[_value(node, "axis", 0)]
    return not isinstance(size, int) or bool(size % count)


def _computes_repeats(node: ir.Node) -> bool:
    return _is_computed(node, 1)


def _is_computed(node: ir.Node, number: int) -> bool:
    """Whether an input is not a constant."""
    value = _input(node, number)
    return value is None or value.const_value is None or value.is_graph_input()


Rows = dict[str, list[Defect]]


def _rows(*given: tuple[Any, ...]) -> Rows:
    """A table from rows of (operators, reason, condition on nodes, *architectures)."""
    found: Rows = {}
    for operators, reason, *rest in given:
        when = {"when": rest[0]} if rest and rest[0] is not None else {}
        for name in operators.split():
            row = Defect(name, "openvino", reason, _SEEN_IN, architectures=tuple(rest[1:]), **when)
            found.setdefault(name, []).append(row)
    return found


_T = ir.DataType
ROWS: Rows = _rows(
    ("Loop Scan", "a run cannot be terminated inside it"),
    (
        "DequantizeLinear",
        "scales of the inputs that a product sums are taken for those of its outputs",
        has_scales_of_summed_inputs,
        X86,
    ),
    ("DFT", "the axis is wrong"),
    ("Softplus", "errors of up to 4e-4"),
    ("Log", "log(0) is -88, and log of a negative number is not NaN", None, ARM),
    ("ReduceLogSum", "log(0) is -88", None, ARM),
    ("ThresholdedRelu", "results end at 255 with dynamic shapes", None, ARM),
    ("TopK", "equal values are not in the order of their indices", None, X86),
    ("Col2Im", "a size that is 0 crashes the process", _computes_blocks, X86),
    ("Attention", "the fourth output leaves out part of the mask", _is_asked_for_products),
    ("Attention", "rows without keys are averages, not zero", _counts_keys, ARM),
    ("Attention", "the number of heads must be static", _hides_heads),
    ("GRU LSTM RNN", "results of layout 1 are in another order", _is_batch_first),
    ("GRU LSTM RNN", "peepholes are left out", _has_peepholes),
    ("MaxPool", "ceil_mode counts windows that begin in the padding", _may_begin_in_padding),
    (
        "AveragePool LpPool MaxPool",
        "dilations fail at run time with dynamic shapes",
        _is_dilated,
        ARM,
    ),
    (
        "PRelu",
        "slopes of the last axis are used for the channels",
        _has_slopes_of_last_axis,
    ),
    (
        "QLinearMatMul",
        "negative int8 results are one too high",
        _gives(_T.INT8),
        ARM,
    ),
    ("QuantizeLinear", "16-bit results are clipped to 8 bits", _gives(_T.INT16, _T.UINT16), ARM),
    ("QuantizeLinear", "computed scales of an axis fail at run time", _computes_scales),
    ("ReduceMax", "the maximum of an empty tensor is not -inf", _is_of_nothing),
    ("ReduceLogSumExp", "the maximum of an empty tensor is not -inf", _is_of_nothing, ARM),
    ("Resize", "antialias and exclude_outside are ignored", _has_settings_that_are_ignored),
    ("Resize", "keep_aspect_ratio_policy is ignored", _keeps_aspect_ratio),
    (
        "Resize",
        "align_corners with scales rounds the output size before it maps coordinates",
        _aligns_corners_by_scales,
    ),
    ("Resize", "another element is taken for the nearest", _takes_nearest, ARM),
    ("Resize", "round_prefer_ceil is wrong with dynamic shapes", _rounds_up, ARM),
    ("Resize", "sizes that are fed may be 0, which crashes the process", _is_fed_sizes),
    ("RoiAlign", "the maximum is taken over other points", _takes_maximum),
    ("Shape", "an empty range is not empty", _is_empty_range),
    ("Split", "parts of unequal sizes fail at run time", _may_be_uneven),
    ("Tile", "computed repeats read memory outside of the tensor", _computes_repeats),
)
