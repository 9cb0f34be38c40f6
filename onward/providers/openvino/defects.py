"""Where OpenVINO's CPU plugin departs from the ONNX standard (2026.4), found by comparing answers.

Such a node goes to the next provider, on the processors that the row was seen on. Each row is held
by a test that fails when OpenVINO mends it, so that the row can go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx_ir as ir

from onward.graph.scopes import bodies
from onward.providers.defect import ARM, X86, Defect, Place

_SEEN_IN = "2026.4"


def defect(node: ir.Node, place: Place) -> str | None:
    """What OpenVINO gets wrong about this node in this place, or None."""
    if node.domain not in ("", "ai.onnx"):
        return None
    for row in ROWS.get(node.op_type, ()):
        if row.holds(place) and row.when(node):
            return row.reason
    return _empty(node) or _inside(node)


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
    """The last window of ceil_mode must not."""
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
    repeats = _input(node, 1)
    return repeats is None or repeats.const_value is None or repeats.is_graph_input()


Rows = dict[str, list[Defect]]


def _rows(*given: tuple[Any, ...]) -> Rows:
    """From (operators, reason, which nodes, *where it was seen); the last two may be left out."""
    found: Rows = {}
    for operators, reason, *rest in given:
        when = {"when": rest[0]} if rest and rest[0] is not None else {}
        for name in operators.split():
            row = Defect(name, "openvino", reason, _SEEN_IN, architectures=tuple(rest[1:]), **when)
            found.setdefault(name, []).append(row)
    return found


_T = ir.DataType
ROWS: Rows = _rows(
    ("Loop Scan", "a run cannot be ended inside it"),
    ("DFT", "the axis is mistaken"),
    ("Softplus", "it is up to 4e-4 away"),
    ("Log", "log(0) is -88, and of what is negative a number", None, ARM),
    ("ReduceLogSum", "log(0) is -88", None, ARM),
    ("ThresholdedRelu", "results end at 255 where sizes are free", None, ARM),
    ("TopK", "equal values are in another order than that of their places", None, X86),
    ("Attention", "the fourth output leaves out part of the mask", _is_asked_for_products),
    ("Attention", "rows without keys are averages, not zero", _counts_keys, ARM),
    ("Attention", "it must know how many heads there are", _hides_heads),
    ("GRU LSTM RNN", "results of layout 1 are in another order", _is_batch_first),
    ("GRU LSTM RNN", "peepholes are left out", _has_peepholes),
    ("MaxPool", "ceil_mode counts windows that begin in the padding", _may_begin_in_padding),
    (
        "AveragePool LpPool MaxPool",
        "dilations fail while they run where sizes are free",
        _is_dilated,
        ARM,
    ),
    (
        "PRelu",
        "one slope for each of the last sizes is read as one for each channel",
        _has_slopes_of_last_axis,
    ),
    (
        "QLinearMatMul",
        "int8 results are one too high where they are negative",
        _gives(_T.INT8),
        ARM,
    ),
    ("QuantizeLinear", "results of 16 bits are cut off at 8", _gives(_T.INT16, _T.UINT16), ARM),
    ("QuantizeLinear", "scales of an axis that are computed fail while they run", _computes_scales),
    ("ReduceMax", "the largest of nothing is a number, not -inf", _is_of_nothing),
    ("ReduceLogSumExp", "the largest of nothing is a number, not -inf", _is_of_nothing, ARM),
    ("Resize", "antialias and exclude_outside are ignored", _has_settings_that_are_ignored),
    ("Resize", "keep_aspect_ratio_policy is ignored", _keeps_aspect_ratio),
    (
        "Resize",
        "align_corners with scales rounds the output size before it maps coordinates",
        _aligns_corners_by_scales,
    ),
    ("Resize", "the nearest element is another one", _takes_nearest, ARM),
    ("Resize", "round_prefer_ceil goes elsewhere where sizes are free", _rounds_up, ARM),
    ("Resize", "sizes that are fed may be 0, which ends the process", _is_fed_sizes),
    ("RoiAlign", "the maximum is of other points", _takes_maximum),
    ("Shape", "an empty range is not empty", _is_empty_range),
    ("Split", "parts of unequal sizes fail while they run", _may_be_uneven),
    ("Tile", "repeats that are computed read memory that is not the tensor's", _computes_repeats),
)
