"""Upgrade operators whose meaning changed, or that were removed."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.errors import UnsupportedModel
from onward.graph.operator_table import OpTable
from onward.passes.rewrite import Ops, Replacement
from onward.passes.upgrades.attributes_to_inputs import set_input, take
from onward.passes.value_facts import attribute, constant, dims, input_of, rank

adapter = OpTable()


def no_upgrade(node: ir.Node, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{node.op_type} has no form in newer opsets: {why} (node {node.name!r})\n"
        "export the model again with a newer opset"
    )


@adapter("Softmax", "LogSoftmax", "Hardmax", since=13)
def softmax(op: Ops, node: ir.Node) -> Replacement:
    """Before 13 x was taken as a matrix, split at `axis`: softmax(flatten(x, axis)), x's shape.

    Along the last axis both mean the same.
    """
    (x,) = node.inputs
    axis, depth = take(node, "axis", 1), rank(x)
    if axis == -1 or (depth is not None and axis % depth == depth - 1):
        node.attributes["axis"] = ir.AttrInt64("axis", -1)
        return None
    rows = op.one(node.op_type, op.Flatten(x, axis=axis), axis=-1)
    return op.Reshape(rows, op.Shape(x))


@adapter("BatchNormalization", since=9)
def batch_normalization_per_activation(op: Ops, node: ir.Node) -> Replacement:
    """spatial=0 had one mean and variance for each activation: y = (x - m) / sqrt(v + e) s + b."""
    if take(node, "spatial", 1):
        return None
    if len(node.outputs) > 1:
        raise no_upgrade(node, "training with spatial=0")
    x, scale, bias, mean, variance = node.inputs
    epsilon = np.asarray(take(node, "epsilon", 1e-5), np.float32)
    deviation = op.Sqrt(op.Add(variance, op.CastLike(epsilon, variance)))
    return op.Add(op.Mul(op.Div(op.Sub(x, mean), deviation), scale), bias)


@adapter("BatchNormalization", since=14)
def batch_normalization_training(op: Ops, node: ir.Node) -> Replacement:
    """Several outputs meant training mode, which is an attribute now."""
    wanted = [bool(value.uses()) or value.is_graph_output() for value in node.outputs]
    if any(wanted[3:]):
        raise no_upgrade(node, "saved_mean and saved_var were removed")
    if any(wanted[1:]):
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
        node.resize_outputs(min(3, len(node.outputs)))
    elif len(node.outputs) > 1:
        node.resize_outputs(1)
    return None


@adapter("Dropout", since=10)
def dropout_mask(op: Ops, node: ir.Node) -> Replacement:
    """The mask had x's type; now it is boolean."""
    if len(node.outputs) < 2 or not (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return None
    (x,) = node.inputs
    ratio = np.asarray(take(node, "ratio", 0.5), np.float32)
    y, mask = op.many("Dropout", 2, x, ratio)
    return y, op.CastLike(mask, x)


@adapter("Upsample", since=9)
def upsample_scales(op: Ops, node: ir.Node) -> Replacement:
    set_input(node, 1, op.constant(np.asarray(take(node, "scales"), np.float32)))
    return None


@adapter("Upsample", since=10)
def upsample(op: Ops, node: ir.Node) -> Replacement:
    x, scales = node.inputs
    return _resize_from_corner(op, x, scales, take(node, "mode", "nearest"))


@adapter("Resize", since=11)
def resize_from_corner(op: Ops, node: ir.Node) -> Replacement:
    x, scales = node.inputs
    return _resize_from_corner(op, x, scales, take(node, "mode", "nearest"))


def _resize_from_corner(
    op: Ops, x: ir.Value | None, scales: ir.Value | None, mode: str
) -> ir.Value:
    """x_old = x_new / scale; nearest rounds down for scale > 1 and up for scale < 1.

    This is what runtimes did before ONNX specified it; axes of both kinds take two nodes.
    """
    known = constant(scales)

    def resize(data: ir.Value | None, by: ir.Value | np.ndarray | None, nearest: str) -> ir.Value:
        return op.Resize(
            data,
            None,
            by,
            mode=mode,
            coordinate_transformation_mode="asymmetric",
            nearest_mode=nearest,
        )

    if mode != "nearest" or known is None or not (known < 1).any():
        return resize(x, scales, "floor")
    if (known <= 1).all():
        return resize(x, scales, "ceil")
    grown = resize(x, np.maximum(known, 1), "floor")
    return resize(grown, np.minimum(known, 1), "ceil")


@adapter("Resize", since=13)
def resize_inputs(op: Ops, node: ir.Node) -> Replacement:
    """An unused input was an empty tensor, now it is omitted; one coordinate mode was removed."""
    sizes = input_of(node, 3)
    for index in (1, 2):
        value = input_of(node, index)
        if dims(value) == (0,) or (index == 2 and sizes is not None):
            node.replace_input_with(index, None)
    if attribute(node, "coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        # (x + 0.5) / scale is the half-pixel coordinate plus a half: round it half a pixel lower.
        nearest = attribute(node, "nearest_mode", "round_prefer_floor")
        lower = {"floor": "round_prefer_ceil", "round_prefer_floor": "ceil"}.get(nearest or "")
        if lower is None:
            raise no_upgrade(node, f"tf_half_pixel_for_nn with nearest_mode={nearest}")
        mode = "coordinate_transformation_mode"
        node.attributes[mode] = ir.AttrString(mode, "half_pixel")
        node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", lower)
    return None


@adapter("Scatter", since=11)
def scatter(op: Ops, node: ir.Node) -> Replacement:
    node.op_type = "ScatterElements"
    return None


@adapter("Scan", since=9)
def scan_over_batch(op: Ops, node: ir.Node) -> Replacement:
    """Scan-8 ran one scan for each batch element: a scan over the batch around the scan."""
    lengths, *inputs = node.inputs
    if lengths is not None:
        raise no_upgrade(node, "Scan-8 with sequence_lens")
    body = node.attributes["body"].as_graph()
    parts = [_without_batch(value, f"{node.name}/part_{i}") for i, value in enumerate(inputs)]
    scans = attribute(node, "num_scan_inputs")
    inner = ir.node(
        "Scan",
        parts,
        {"body": body, "num_scan_inputs": scans},
        num_outputs=len(body.outputs),
        name=f"{node.name}/one",
    )
    directions = take(node, "directions")
    if directions:
        inner.attributes["scan_input_directions"] = ir.AttrInt64s(
            "scan_input_directions", directions
        )
    for index, value in enumerate(inner.outputs):
        value.name = f"{node.name}/result_{index}"
    imports = dict(body.opset_imports)
    outer = ir.Graph(parts, inner.outputs, nodes=[inner], opset_imports=imports, name="batch")
    return op.many("Scan", len(body.outputs), *inputs, body=outer, num_scan_inputs=len(inputs))


def _without_batch(value: ir.Value | None, name: str) -> ir.Value:
    assert value is not None
    shape = None if value.shape is None else ir.Shape(list(value.shape)[1:])
    return ir.Value(name=name, type=value.type, shape=shape)


@adapter("Erf", since=13)
@adapter("ReduceLogSum", "ReduceLogSumExp", since=28)
def through_float(op: Ops, node: ir.Node) -> Replacement:
    """Integers are not allowed now: cast them to float and back."""
    x = node.inputs[0]
    if x is None or x.dtype is None or not x.dtype.is_integer():
        return None
    kept = {attribute.name: attribute for attribute in node.attributes.values()}
    y = op.one(node.op_type, op.Cast(x, to=int(ir.DataType.FLOAT)), *node.inputs[1:], **kept)
    return op.Cast(y, to=int(x.dtype))


@adapter("RoiAlign", since=16)
def roi_align(op: Ops, node: ir.Node) -> Replacement:
    name = "coordinate_transformation_mode"
    node.attributes[name] = ir.AttrString(name, "output_half_pixel")
    return None


@adapter("GridSample", since=20)
def grid_sample(op: Ops, node: ir.Node) -> Replacement:
    mode = take(node, "mode", "bilinear").removeprefix("bi")
    node.attributes["mode"] = ir.AttrString("mode", mode)
    return None


@adapter("GroupNormalization", since=21)
def group_normalization(op: Ops, node: ir.Node) -> Replacement:
    """Scale and bias were for groups; now they are for channels: repeat them."""
    x, *per_group = node.inputs
    groups = attribute(node, "num_groups")
    each = op.Div(op.Shape(x, start=1, end=2), np.asarray([groups], np.int64))
    shape = op.Concat(np.asarray([groups], np.int64), each, axis=0)
    for index, value in enumerate(per_group, start=1):
        repeated = op.Reshape(op.Expand(op.Unsqueeze(value, [1]), shape), [-1])
        node.replace_input_with(index, repeated)
    return None


@adapter("Attention", since=24)
def attention_mask(op: Ops, node: ir.Node) -> Replacement:
    """A mask with one column was broadcast over all keys; now it would be padded: expand it."""
    mask, shape = input_of(node, 3), dims(input_of(node, 3))
    key, past, depth = input_of(node, 1), input_of(node, 4), rank(input_of(node, 1))
    if shape is None or shape[-1] != 1 or depth is None:
        return None
    keys = op.Shape(
        key, start=depth - 2, end=depth - 1
    )  # (batch, heads, keys, size) or without heads
    if past is not None:
        keys = op.Add(keys, op.Shape(past, start=2, end=3))
    node.replace_input_with(3, op.Expand(mask, keys))
    return None


@adapter("Attention", since=25)
def attention_heads(op: Ops, node: ir.Node) -> Replacement:
    """The numbers of heads are allowed only if the shapes do not have them."""
    if rank(node.inputs[0]) == 4:
        take(node, "q_num_heads")
        take(node, "kv_num_heads")
    return None
