"""Sums of many numbers in parts: onnxruntime adds all of them to a few floats, one after another.

Of 6 million squares, such a sum is wrong by 3e-4 of itself, of 40 million by 5e-3; the sum of the
sums of parts by less than 1e-5.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import attribute, dims, input_of, ints, static

rule = Rules()

_PART = 1 << 15  # squares that are added one after another
_SHORTEST_PART = 1 << 12  # below, what a Scan takes for each part costs more than the sum
_MANY_SQUARES = 1 << 18  # above, their sum is not exact enough; gradients have a few large ones
_FEW = 1 << 16  # numbers of which a sum is exact enough
_OPEN = 64  # taken as the size of an open axis


@rule("ReduceMean", "ReduceSum")
def sum_of_row_sums(op: Ops, node: ir.Node) -> Replacement:
    """sum(x) = sum of sum(x, last axis); means alike"""
    (x, *_), shape = node.inputs, dims(node.inputs[0])
    if x is None or shape is None or not _sums_everything(node):
        return None
    sizes = [size if isinstance(size, int) else _OPEN for size in shape]
    long = [axis for axis, size in enumerate(sizes) if size != 1]
    if len(long) < 2 or math.prod(sizes) <= _FEW:
        return None
    rows = op.one(node.op_type, x, [long[-1]], keepdims=0)
    return op.one(node.op_type, rows, keepdims=0)


@rule("ReduceL2", "ReduceSumSquare")
def squares_in_parts(op: Ops, node: ir.Node) -> Replacement:
    """sum(x^2) = the sum of those of equal parts: onnxruntime is ten times slower row by row"""
    x, shape = node.inputs[0], static(node.inputs[0])
    count = None if shape is None else _part_count(math.prod(shape))
    if count is None or not _sums_everything(node):
        return None
    part = ir.val("part", ir.DataType.FLOAT, (math.prod(shape or ()) // count,))
    squares = ir.node("ReduceSumSquare", [part], {"keepdims": 0})
    squares.outputs[0].name = "squares"
    squares.outputs[0].type, squares.outputs[0].shape = part.type, ir.Shape([])
    body = ir.Graph([part], squares.outputs, nodes=[squares], name="part_squares")
    parts = op.Scan(op.Reshape(x, [count, -1]), body=body, num_scan_inputs=1)
    parts.type, parts.shape = part.type, ir.Shape([count])
    total = op.ReduceSum(parts, keepdims=0)
    return op.Sqrt(total) if node.op_type == "ReduceL2" else total


def _sums_everything(node: ir.Node) -> bool:
    """Whether it reduces all axes of a float32 tensor to a scalar."""
    x, axes = node.inputs[0], input_of(node, 1)
    if x is None or x.dtype != ir.DataType.FLOAT or attribute(node, "keepdims", 1):
        return False
    if attribute(node, "noop_with_empty_axes", 0) or attribute(node, "axes") is not None:
        return False
    return axes is None or ints(axes) == []


def _part_count(size: int) -> int | None:
    """The fewest equal parts of at most _PART numbers; None if one is enough, or there are none."""
    if size <= _MANY_SQUARES:
        return None
    counts = range(math.ceil(size / _PART), size // _SHORTEST_PART + 1)
    return next((count for count in counts if size % count == 0), None)
