"""The forms of nodes for rows that are packed: (kept, ...) instead of (batch, time, ...).

Axes after those of the rows move by one; shapes lose the sizes of batch and time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from onward.graph.operators import BROADCASTING, REDUCTIONS, UNARY, VARIADIC
from onward.passes.value_facts import attribute, input_of, ints
from onward.programs.sparsity.row_axes import LEADING, BatchSequenceAxes, RowAxes

BROADCAST = BROADCASTING | VARIADIC | {"Where"}
_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_WITH_AXIS = (
    *("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "Split", "Concat"),
    *("LayerNormalization", "RMSNormalization"),
)
_PACKABLE = {
    *(BROADCAST | UNARY | REDUCTIONS),
    *_RESHAPES,
    *_WITH_AXIS,
    *("MatMul", "Gemm", "Gather", "Transpose", "Slice", "Expand", "Dropout"),
} - {"PRelu"}

Constant = Callable[[Sequence[int]], ir.Value]


def can_pack(node: ir.Node, rows: RowAxes) -> bool:
    """Whether a node that works row by row has a form for rows that are packed."""
    inputs = rows.row_inputs(node)
    if node.domain or not inputs or node.op_type not in _PACKABLE:
        return False
    own = [node.inputs[i] for i in inputs]
    if not all(_is_packable(v, rows) for v in (*own, *node.outputs) if v is not None and v.name):
        return False
    if node.op_type not in BROADCAST:
        return True
    axes, rank = rows.of(node.outputs[0]), len(rows.sizes(node.outputs[0]) or ())
    others = [v for i, v in enumerate(node.inputs) if i not in inputs and v is not None]
    return axes is not None and all(_is_broadcastable(v, axes, rank, rows) for v in others)


def _is_packable(value: ir.Value, rows: RowAxes) -> bool:
    axes, sizes = rows.of(value), rows.sizes(value)
    if axes is None or sizes is None or not axes.are_first:
        return False
    return rows.trial.are_constant(sizes[axes.count :]) and 0 not in sizes


def _is_broadcastable(value: ir.Value, axes: BatchSequenceAxes, rank: int, rows: RowAxes) -> bool:
    """Whether a value without rows can be packed like the rows that it is broadcast to."""
    sizes = rows.sizes(value)
    if sizes is None:
        return False
    present = axes.count - (rank - len(sizes))  # how many of the rows' axes it has
    if present <= 0 or all(size == 1 for size in sizes[:present]):
        return True
    return axes == LEADING and rows.trial.are_constant(sizes[present:])


def change_form(
    node: ir.Node,
    axes: Mapping[ir.Value, BatchSequenceAxes],
    sizes: Mapping[ir.Value, Sequence[int]],
    constant: Constant,
) -> None:
    """Change attributes, axes and shapes of a node whose inputs were packed, in place."""
    y = node.outputs[0]
    removed, rank = axes[y].count - 1, len(sizes[y])
    if node.op_type in _RESHAPES:
        _write_reshape(node, [-1, *sizes[y][axes[y].count :]], constant)
    elif node.op_type == "Expand":
        node.replace_input_with(1, constant([1, *sizes[y][axes[y].count :]]))
    elif removed and node.op_type in (*_WITH_AXIS, "Gather"):
        _move_axis(node, removed)
    elif removed and node.op_type in REDUCTIONS:
        _move_axes(node, 1, removed, constant)
    elif removed and node.op_type == "Slice":
        _move_axes(node, 3, removed, constant)
    elif removed and node.op_type == "Transpose":
        order = list(attribute(node, "perm") or reversed(range(rank)))
        moved = [0, *(axis - 1 for axis in order[2:])]
        node.attributes["perm"] = ir.AttrInt64s("perm", moved)


def _write_reshape(node: ir.Node, shape: Sequence[int], constant: Constant) -> None:
    """Turn a node that only changes the shape into a Reshape."""
    node.op_type = "Reshape"
    node.attributes.clear()
    node.attributes["allowzero"] = ir.AttrInt64("allowzero", 0)
    if len(node.inputs) < 2:
        node.resize_inputs(2)
    node.replace_input_with(1, constant(shape))


def _move_axis(node: ir.Node, removed: int) -> None:
    default = 0 if node.op_type in ("Split", "Gather") else -1
    axis = attribute(node, "axis", default)
    if axis > 0:  # a table is gathered along axis 0
        node.attributes["axis"] = ir.AttrInt64("axis", axis - removed)


def _move_axes(node: ir.Node, place: int, removed: int, constant: Constant) -> None:
    """Move the axes that are an input, or an attribute of older opsets."""
    given = attribute(node, "axes") or ints(input_of(node, place)) or []
    moved = [axis if axis < 0 else axis - removed for axis in given]
    if "axes" in node.attributes:
        node.attributes["axes"] = ir.AttrInt64s("axes", moved)
    else:
        node.replace_input_with(place, constant(moved))
