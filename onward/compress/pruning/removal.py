"""Remove units from a model: `remove_units` cuts them out, `mask_model` sets them to zero.

The law: both give the same outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onward.compress.pruning.axes import Array, Positions, constant, known_sizes, rank
from onward.compress.pruning.cut import CUTS, Cut
from onward.compress.pruning.units import UnitGroup, all_weights, find_groups, find_positions
from onward.errors import OptionError
from onward.graph.dtypes import FLOATS
from onward.graph.scopes import walk
from onward.graph.shapes.infer import infer_shapes
from onward.passes.drop_unused import drop_unused
from onward.passes.rewrite import Names

Removal = Mapping[str, Sequence[int]]  # the numbers of the units to remove, by the group's name
_NEWEST = 1 << 30
_SUMMING = ("Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN")


def remove_units(model: ir.Model, removal: Removal) -> ir.Model:
    """A copy of a prepared model without these units."""
    copy = model.clone()
    positions = find_positions(copy)
    removed = removed_labels(find_groups(copy, positions), removal, len(positions.labels))
    cut = Cut(copy, positions, removed)
    weights = all_weights(copy)
    for node in list(walk(copy.graph)):
        adjust = CUTS.find(node.domain, node.op_type, _NEWEST)
        if adjust is not None:
            adjust(node, cut)
    for value in weights:
        _cut_weight(value, cut)
    _forget_sizes(positions, removed)
    return infer_shapes(drop_unused(copy))


def removed_labels(groups: Sequence[UnitGroup], removal: Removal, count: int) -> Array:
    """Which labels a removal names, as booleans."""
    known = {group.name: group for group in groups}
    removed = np.zeros(count, bool)
    for name, units in removal.items():
        if name not in known:
            raise OptionError(f"no group of units {name!r}\nit is one of {', '.join(known)}")
        removed[known[name].labels[np.asarray(units, np.int64)]] = True
    return removed


def _cut_weight(value: ir.Value, cut: Cut) -> None:
    tensor = value.const_value
    assert tensor is not None
    array = None
    for axis in range(len(known_sizes(value) or ())):
        kept = cut.kept(value, axis)
        if kept is not None:
            array = np.compress(kept, tensor.numpy() if array is None else array, axis)
    if array is not None:
        value.const_value = ir.tensor(np.ascontiguousarray(array), tensor.dtype, name=value.name)
        value.shape = ir.Shape(array.shape)


def _forget_sizes(positions: Positions, removed: Array) -> None:
    """Clear the sizes of values that were cut, for shape inference to find."""
    gone = removed[positions.labels]
    for (value, axis), start in positions.where.items():
        sizes = known_sizes(value)
        if value.const_value is not None or sizes is None:
            continue
        if gone[start : start + int(sizes[axis] or 0)].any():
            value.shape = None


# -- masks -------------------------------------------------------------------------------------


def mask_model(model: ir.Model, removal: Removal) -> ir.Model:
    """A copy of a prepared model in which these units are zero, and nothing reads them.

    The slices of weights that belong to them are zero, and so is the data of these units that
    products and convolutions read.
    """
    copy = model.clone()
    positions = find_positions(copy)
    removed = removed_labels(find_groups(copy, positions), removal, len(positions.labels))
    cut = Cut(copy, positions, removed)
    for node in list(walk(copy.graph)):
        if node.op_type in _SUMMING and not node.domain:
            _mask_data(node, cut, Names(copy))
    for value in all_weights(copy):
        if value.dtype not in FLOATS:
            continue
        assert value.const_value is not None
        array = value.const_value.numpy().copy()
        for axis in range(array.ndim):
            kept = cut.kept(value, axis)
            if kept is not None:
                array *= kept.reshape([-1 if a == axis else 1 for a in range(array.ndim)])
        value.const_value = ir.tensor(array, value.const_value.dtype, name=value.name)
    return copy


def _mask_data(node: ir.Node, cut: Cut, names: Names) -> None:
    """Let an operator that sums over an axis read data in which the removed units are zero."""
    for place, x in enumerate(node.inputs):
        if x is None or constant(x) is not None or x.dtype not in FLOATS:
            continue
        axes = range(rank(x) or 0)
        kept = {axis: found for axis in axes if (found := cut.kept(x, axis)) is not None}
        if not kept:
            continue
        mask = np.ones([1] * len(axes), bool)
        for axis, found in kept.items():
            mask = mask & found.reshape([-1 if axis == other else 1 for other in axes])
        zero = cut.constant(node, np.zeros((), x.dtype.numpy()))
        # chosen, not multiplied: what divides by a masked weight is not a number
        where = ir.node(
            "Where", inputs=[cut.constant(node, mask), x, zero], name=names.fresh("masked")
        )
        where.outputs[0].name = names.fresh(f"{x.name}_masked")
        assert isinstance(node.graph, ir.Graph)
        node.graph.insert_before(node, where)
        node.replace_input_with(place, where.outputs[0])
