"""Convert a model to the opset that is wanted, for artifacts in their model's opset.

Gradients and updates are built in the newest opset. For an older one, a few operators are written
with others; if that is impossible, the model stays in the oldest opset that it fits.
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

OlderForm = Callable[[Ops, ir.Node], ir.Value | None]

# Operators for whose opset-22 versions stock onnxruntime has no kernel.
_LAGGING = operators(
    "GlobalLpPool MaxRoiPool Multinomial RandomNormal RandomNormalLike RandomUniform "
    "RandomUniformLike RoiAlign"
)
_LAGS_SINCE = 22
_OLDEST = 13  # the oldest opset in which every form below is valid
_END = np.iinfo(np.int64).max


def convert_to_opset(model: ir.Model, wanted: int) -> ir.Model:
    """Convert a model to the wanted opset, or else to the oldest that it fits.

    Stock onnxruntime loads the result; UnsupportedModel names what needs a newer opset.
    """
    model = lower_opset(model, STOCK_OPSET)
    found = model.opset_imports[""]
    if found > wanted >= _OLDEST and _rewrite_for_opset(model, wanted):
        model.opset_imports[""] = wanted
    elif found < wanted <= STOCK_OPSET:  # it fits the oldest and the newest: so all between
        lags = any(node.op_type in _LAGGING and not node.domain for node in nodes_of(model))
        model.opset_imports[""] = max(found, _LAGS_SINCE - 1) if lags else wanted
    return model


def _rewrite_for_opset(model: ir.Model, wanted: int) -> bool:
    """Rewrite all nodes for an older opset; False, and no change, if that is impossible."""
    found = model.opset_imports[""]
    nodes = [node for node in nodes_of(model) if not node.domain]
    newer = [node for node in nodes if not fits_opset(node, found, wanted)]
    made = [(node, op := Ops(), _older_form(op, node)) for node in newer]
    if any(value is None for _, _, value in made):
        for _, op, _ in made:
            discard(op)
        return False
    names = Names(model)
    for node, op, value in made:
        assert value is not None
        replace(node, [value], op, names)
    for node in nodes_of(model):
        if not node.domain:  # attributes that older schemas lack have default values
            known = onnx.defs.get_schema(node.op_type, wanted).attributes
            for name in node.attributes.keys() - set(known):
                del node.attributes[name]
    return True


def _older_form(op: Ops, node: ir.Node) -> ir.Value | None:
    older_form = _OLDER_FORMS.get(node.op_type)
    return None if older_form is None else older_form(op, node)


def _part_of_shape(op: Ops, node: ir.Node) -> ir.Value:
    """Shape(x, start, end) = Slice(Shape(x), start, end)"""
    start, end = attribute(node, "start", 0), attribute(node, "end", _END)
    return op.Slice(op.Shape(node.inputs[0]), [start], [end])


def _axes_as_attribute(op: Ops, node: ir.Node) -> ir.Value | None:
    """ReduceMean(x, axes) = ReduceMean(x, axes=axes), with axes as an attribute"""
    x, given = node.inputs[0], input_of(node, 1)
    axes = ints(given)
    if x is None or x.dtype == ir.DataType.BOOL or (given is not None and not axes):
        return None
    if given is None and attribute(node, "noop_with_empty_axes", 0):
        return None
    return op.one(node.op_type, x, axes=axes, keepdims=attribute(node, "keepdims", 1))


def _add_one_each(op: Ops, node: ir.Node) -> ir.Value | None:
    """ScatterElements(x, i, u, reduction=add) = ScatterElements(x, i, x[i] + u)

    if no element is written twice: i has one element along the axis.
    """
    x, indices, updates = node.inputs
    axis, sizes = attribute(node, "axis", 0), dims(indices)
    if attribute(node, "reduction", "none") != "add" or sizes is None or sizes[axis] != 1:
        return None
    summed = op.Add(op.GatherElements(x, indices, axis=axis), updates)
    return op.ScatterElements(x, indices, summed, axis=axis)


_OLDER_FORMS: dict[str, OlderForm] = {
    "Shape": _part_of_shape,
    "ScatterElements": _add_one_each,
    **dict.fromkeys(
        REDUCTIONS - {"ReduceSum"},
        _axes_as_attribute,
    ),
}
