"""Gradients of reshape, expand, concat, split, permute, Trilu, Range (slices: slice_pad.py)."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps, Size, rank
from onward.gradients.rule import GradientTable, broadcasting
from onward.passes.value_facts import attribute, input_of, ints

gradient = GradientTable()


def elements(op: GradientOps, vector: ir.Value | None, count: int) -> list[Size]:
    """A vector of integers as sizes: numbers where it is constant, else values of shape (1,)."""
    known = ints(vector)
    if known is not None:
        return list(known)
    wide = op.Cast(vector, to=int(ir.DataType.INT64))  # sizes are int64
    return [op.Slice(wide, [i], [i + 1], [0]) for i in range(count)]


# -- the same elements under another shape ---------------------------------------------------


@gradient("Reshape", "Flatten")
def reshape(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy in x's shape"""
    x = node.inputs[0]
    assert x is not None
    return op.reshape_as(dy, x)


@gradient("Squeeze")
def squeeze(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy with the axes of size 1 that x had"""
    axes = input_of(node, 1)
    return reshape(op, node, dy) if axes is None else op.Unsqueeze(dy, axes)


@gradient("Unsqueeze")
def unsqueeze(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy without the new axes"""
    return op.Squeeze(dy, node.inputs[1])


@gradient("Transpose")
def transpose(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy permuted back"""
    perm = attribute(node, "perm")
    if perm is None:
        return op.Transpose(dy)
    return op.Transpose(dy, perm=[list(perm).index(axis) for axis in range(len(perm))])


@gradient("DepthToSpace")
def depth_to_space(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = SpaceToDepth(dy), the inverse; its CRD form is written as Reshape and Transpose"""
    (x,), k = node.inputs, attribute(node, "blocksize")
    assert x is not None
    if attribute(node, "mode") == "DCR":
        return op.SpaceToDepth(dy, blocksize=k)
    n, _, h, w = op.sizes(x)
    blocks = op.Reshape(dy, op.shape(n, op.size(dy, 1), h, k, w, k), allowzero=1)
    return op.reshape_as(op.Transpose(blocks, perm=[0, 1, 3, 5, 2, 4]), x)


@gradient("SpaceToDepth")
def space_to_depth(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = DepthToSpace(dy), the inverse"""
    return op.DepthToSpace(dy, blocksize=attribute(node, "blocksize"), mode=attribute(node, "mode"))


# -- repeat, concatenate, split -------------------------------------------------------------


@gradient("Expand")
@broadcasting
def expand(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy, summed over the copies"""
    return dy


@gradient("Tile")
def tile(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy, summed over the copies: (r n) -> (r, n) -> (n) at each axis that is repeated"""
    x, repeats = node.inputs
    assert x is not None
    shape: list[Size] = []
    copies: list[int] = []
    for size, times in zip(op.sizes(x), elements(op, repeats, rank(x))):
        if times != 1:
            copies.append(len(shape))
            shape.append(times)
        shape.append(size)
    if not copies:
        return dy
    return op.ReduceSum(op.Reshape(dy, op.shape(*shape), allowzero=1), copies, keepdims=0)


@gradient("Concat")
def concat(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx_i = its part of dy"""
    axis, count = attribute(node, "axis"), len(node.inputs)
    if count == 1:
        return dy
    sizes = op.shape(*(op.size(x, axis) for x in node.inputs if x is not None))
    return op.Split(dy, sizes, axis=axis, outputs=count)


@gradient("Split")
def split(op: GradientOps, node: ir.Node, *dys: ir.Value) -> Any:
    """dx = the dys joined"""
    return op.Concat(*dys, axis=attribute(node, "axis"))


# -- moved about -----------------------------------------------------------------------------


@gradient("ReverseSequence")
def reverse_sequence(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy reversed again"""
    axes = {name: attribute(node, name) for name in ("batch_axis", "time_axis")}
    return op.ReverseSequence(dy, node.inputs[1], **axes)


@gradient("Trilu")
def trilu(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = the same triangle of dy"""
    return op.Trilu(dy, input_of(node, 1), upper=attribute(node, "upper"))


@gradient("Range")
def range_(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y_i = start + i delta: dstart = sum(dy_i), ddelta = sum(i dy_i)"""
    places = op.cast_like(op.arange(op.size(dy, 0)), dy)
    return op.ReduceSum(dy, keepdims=0), None, op.ReduceSum(op.Mul(dy, places), keepdims=0)
