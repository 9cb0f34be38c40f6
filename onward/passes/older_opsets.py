"""Opsets: artifacts are written in the opset of the model that they are made for.

Gradients and updates are built in the newest opset. On the way back a few operators need another
spelling; where one has none, the model is left in the oldest opset that can say it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir

from onward.graph.operators import REDUCTIONS
from onward.passes.downgrade import STOCK_OPSET, fits_opset, lower_opset
from onward.passes.rewrite import Names, Ops, discard, nodes_of, replace
from onward.passes.value_facts import attribute, dims, input_of, ints, operators

Spelling = Callable[[Ops, ir.Node], ir.Value | None]

# Of these, stock onnxruntime has no kernel for what they became in opset 22.
_LAGGING = operators(
    "GlobalLpPool MaxRoiPool Multinomial RandomNormal RandomNormalLike RandomUniform "
    "RandomUniformLike RoiAlign"
)
_LAGS_SINCE = 22
_OLDEST = 13  # in which every spelling below holds
_END = np.iinfo(np.int64).max


def in_opset(model: ir.Model, wanted: int) -> ir.Model:
    """Rewrite a model in the opset that is wanted, or else in the oldest that can say it.

    Stock onnxruntime loads the result; UnsupportedModel says what needs a newer opset than it has.
    """
    model = lower_opset(model, STOCK_OPSET)
    found = model.opset_imports[""]
    if found > wanted >= _OLDEST and _respell(model, wanted):
        model.opset_imports[""] = wanted
    elif found < wanted <= STOCK_OPSET:  # the newest and the oldest say it: so do all between
        lags = any(node.op_type in _LAGGING and not node.domain for node in nodes_of(model))
        model.opset_imports[""] = max(found, _LAGS_SINCE - 1) if lags else wanted
    return model


def _respell(model: ir.Model, wanted: int) -> bool:
    """Say all nodes in an older opset; whether that can be done. If not, nothing is changed."""
    found = model.opset_imports[""]
    nodes = [node for node in nodes_of(model) if not node.domain]
    newer = [node for node in nodes if not fits_opset(node, found, wanted)]
    made = [(node, op := Ops(), _spell(op, node)) for node in newer]
    if any(value is None for _, _, value in made):
        for _, op, _ in made:
            discard(op)
        return False
    names = Names(model)
    for node, op, value in made:
        assert value is not None
        replace(node, [value], op, names)
    for node in nodes_of(model):
        if not node.domain:  # what older schemas lack is at its default, or it would not fit
            known = onnx.defs.get_schema(node.op_type, wanted).attributes
            for name in node.attributes.keys() - set(known):
                del node.attributes[name]
    return True


def _spell(op: Ops, node: ir.Node) -> ir.Value | None:
    spelling = _SPELLINGS.get(node.op_type)
    return None if spelling is None else spelling(op, node)


def _part_of_shape(op: Ops, node: ir.Node) -> ir.Value:
    """Shape(x, start, end) = Slice(Shape(x), start, end)"""
    start, end = attribute(node, "start", 0), attribute(node, "end", _END)
    return op.Slice(op.Shape(node.inputs[0]), [start], [end])


def _axes_as_attribute(op: Ops, node: ir.Node) -> ir.Value | None:
    """ReduceMean(x, axes) with its axes as an attribute."""
    x, given = node.inputs[0], input_of(node, 1)
    axes = ints(given)
    if x is None or x.dtype == ir.DataType.BOOL or (given is not None and not axes):
        return None
    if given is None and attribute(node, "noop_with_empty_axes", 0):
        return None
    return op.one(node.op_type, x, axes=axes, keepdims=attribute(node, "keepdims", 1))


def _add_one_each(op: Ops, node: ir.Node) -> ir.Value | None:
    """ScatterElements(x, i, u, reduction=add) = ScatterElements(x, i, x[i] + u)

    Where no place is written to twice: i has one element along the axis.
    """
    x, indices, updates = node.inputs
    axis, sizes = attribute(node, "axis", 0), dims(indices)
    if attribute(node, "reduction", "none") != "add" or sizes is None or sizes[axis] != 1:
        return None
    summed = op.Add(op.GatherElements(x, indices, axis=axis), updates)
    return op.ScatterElements(x, indices, summed, axis=axis)


_SPELLINGS: dict[str, Spelling] = {
    "Shape": _part_of_shape,
    "ScatterElements": _add_one_each,
    **dict.fromkeys(
        REDUCTIONS - {"ReduceSum"},
        _axes_as_attribute,
    ),
}
