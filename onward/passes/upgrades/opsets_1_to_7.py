"""Upgrade operators of opsets 1 to 7, ONNX's first two years. Best effort."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.operator_table import OpTable
from onward.passes.rewrite import Ops, Replacement
from onward.passes.upgrades.attributes_to_inputs import set_input, take
from onward.passes.upgrades.changed_operators import no_upgrade
from onward.passes.value_facts import constant, rank

adapter = OpTable()


@adapter("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor", since=7)
@adapter("PRelu", since=7)
def broadcast_at_axis(op: Ops, node: ir.Node) -> Replacement:
    """b was aligned with a's axes from `axis` on: add axes of size 1 after it."""
    a, b = node.inputs
    axis = take(node, "axis")
    if not take(node, "broadcast", node.op_type == "PRelu"):
        return None
    ours, theirs = rank(a), rank(b)
    if axis is None and node.op_type != "PRelu":
        return None
    if ours is None or theirs is None:
        raise no_upgrade(node, "its inputs' ranks are not known")
    if axis is None:  # a slope for each channel
        axis = 1
        if theirs != 1:
            return None
    missing = ours - (axis % ours) - theirs
    if missing > 0 and not (theirs == 1 and b is not None and b.shape == (1,)):
        node.replace_input_with(1, op.Unsqueeze(b, list(range(theirs, theirs + missing))))
    return None


@adapter("Cast", since=6)
def cast(op: Ops, node: ir.Node) -> Replacement:
    """The target type was a string."""
    name = take(node, "to")
    node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType[str(name).upper()]))
    return None


@adapter("Concat", since=4)
def concat(op: Ops, node: ir.Node) -> Replacement:
    node.attributes["axis"] = ir.AttrInt64("axis", take(node, "axis", 1))
    return None


@adapter("Reshape", since=5)
def reshape(op: Ops, node: ir.Node) -> Replacement:
    set_input(node, 1, op.constant(np.asarray(take(node, "shape", []), np.int64)))
    return None


@adapter("Pad", since=2)
def pad(op: Ops, node: ir.Node) -> Replacement:
    node.attributes["pads"] = ir.AttrInt64s("pads", take(node, "paddings"))
    return None


@adapter("Tile", since=6)
def tile(op: Ops, node: ir.Node) -> Replacement:
    """(x, tiles, axis) became one number for each axis."""
    x, tiles, axis = node.inputs
    depth, times, where = rank(x), constant(tiles), constant(axis)
    if depth is None or times is None or where is None:
        raise no_upgrade(node, "its tiles are not constant")
    repeats = np.ones(depth, np.int64)
    repeats[int(where.item())] = int(times.item())
    return op.Tile(x, repeats)


@adapter("Upsample", since=7)
def upsample(op: Ops, node: ir.Node) -> Replacement:
    scales = [1.0, 1.0, take(node, "height_scale"), take(node, "width_scale")]
    node.attributes["scales"] = ir.AttrFloat32s("scales", scales)
    return None


@adapter("LpPool", "GlobalLpPool", since=2)
def lp_pool(op: Ops, node: ir.Node) -> Replacement:
    node.attributes["p"] = ir.AttrInt64("p", int(take(node, "p", 2.0)))
    return None


@adapter("Selu", since=6)
def selu(op: Ops, node: ir.Node) -> Replacement:
    """The defaults got more digits."""
    node.attributes["alpha"] = ir.AttrFloat32("alpha", take(node, "alpha", 1.6732))
    node.attributes["gamma"] = ir.AttrFloat32("gamma", take(node, "gamma", 1.0507))
    return None


@adapter("BatchNormalization", "Dropout", "Gemm", "GRU", "LSTM", "RNN", since=7)
def drop_hints(op: Ops, node: ir.Node) -> Replacement:
    for name in ("is_test", "broadcast", "output_sequence"):
        take(node, name)
    return None
