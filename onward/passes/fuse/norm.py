"""LayerNormalization and RMSNormalization from their formulas.

First the core, with a scale of ones; then the scale, the bias and the casts around it move in.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.dtypes import HALVES
from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import (
    attribute,
    constant,
    dims,
    input_of,
    ints,
    is_float,
    is_scalar,
    like,
    made_by,
    only_inside,
    other_input,
    rank,
    reads_once,
    scalar,
    static,
)

rule = Rules()

_NORMS = ("LayerNormalization", "RMSNormalization")


@rule("Div", "Mul")
def normalization(op: Ops, node: ir.Node) -> Replacement:
    """d / sqrt(mean(d d) + e): LayerNormalization if d = x - mean(x), else RMSNormalization."""
    for d, root in _over_root(node):
        mean_square, epsilon, inside = _mean_square(root)
        if mean_square is None or epsilon is None:
            continue
        axes, square = _mean_axes(mean_square), made_by(mean_square.inputs[0], "Pow", "Mul")
        if axes is None or square is None or not _is_square_of(square, d):
            continue
        inside += [mean_square, square]
        centre = _centre(d, axes)
        if centre is not None:
            inside += centre
            if only_inside(inside, node):
                x = centre[0].inputs[0]
                return _with_ones(op, "LayerNormalization", x, axes, epsilon)
        elif only_inside(inside, node) and axes == [-1]:
            return _with_ones(op, "RMSNormalization", d, axes, epsilon)
    return None


def _over_root(node: ir.Node) -> list[tuple[ir.Value, list[ir.Node]]]:
    """The ways to read a node as d / sqrt(...): d, and the nodes from the root outwards."""
    a, b = node.inputs
    if a is None or b is None:
        return []
    if node.op_type == "Div":
        root = made_by(b, "Sqrt")
        return [] if root is None else [(a, [root])]
    found = []
    for d, inverse in ((a, b), (b, a)):
        reciprocal = made_by(inverse, "Reciprocal", "Div", "Pow")
        if reciprocal is None:
            continue
        if reciprocal.op_type == "Pow":
            if is_scalar(reciprocal.inputs[1], -0.5):
                found.append((d, [reciprocal]))
            continue
        if reciprocal.op_type == "Div" and not is_scalar(reciprocal.inputs[0], 1):
            continue
        root = made_by(reciprocal.inputs[-1], "Sqrt")
        if root is not None:
            found.append((d, [root, reciprocal]))
    return found


def _mean_square(
    root: list[ir.Node],
) -> tuple[ir.Node | None, float | None, list[ir.Node]]:
    """Below the root: mean(...) + epsilon."""
    add = made_by(root[0].inputs[0], "Add")
    if add is None:
        return None, None, []
    for value in add.inputs:
        mean = made_by(value, "ReduceMean")
        if mean is not None and value is not None:
            return mean, scalar(other_input(add, value)), [*root, add]
    return None, None, []


def _mean_axes(mean: ir.Node) -> list[int] | None:
    """The axes of a mean over the last ones, kept, counted from the end."""
    axes, depth = ints(input_of(mean, 1)), rank(mean.inputs[0])
    if not axes or depth is None or not attribute(mean, "keepdims", 1):
        return None
    found = sorted(axis % depth - depth for axis in axes)
    return found if found == list(range(-len(found), 0)) else None


def _is_square_of(square: ir.Node, d: ir.Value) -> bool:
    """d d or d ** 2, where d may have been computed a second time."""
    a, b = square.inputs
    if square.op_type == "Pow":
        return _same(a, d) and is_scalar(b, 2)
    return _same(a, d) and _same(b, d)


def _same(a: ir.Value | None, b: ir.Value) -> bool:
    if a is b:
        return True
    first, second = made_by(a, "Sub"), made_by(b, "Sub")
    return first is not None and second is not None and list(first.inputs) == list(second.inputs)


def _centre(d: ir.Value, axes: list[int]) -> list[ir.Node] | None:
    """The nodes of x - mean(x), the difference first, if d is that."""
    difference = made_by(d, "Sub")
    mean = None if difference is None else made_by(difference.inputs[1], "ReduceMean")
    if difference is None or mean is None or mean.inputs[0] is not difference.inputs[0]:
        return None
    return [difference, mean] if _mean_axes(mean) == axes else None


def _with_ones(
    op: Ops, operator: str, x: ir.Value | None, axes: list[int], epsilon: float
) -> ir.Value | None:
    shape = dims(x)
    size = None if shape is None else shape[axes[0] :]
    if x is None or not is_float(x) or size is None:
        return None
    if not all(isinstance(dim, int) for dim in size):
        return None
    precision = int(ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT)
    return op.one(
        operator,
        x,
        like(np.ones(size), x),
        axis=axes[0],
        epsilon=epsilon,
        stash_type=precision,
    )


@rule("Mul")
def scale(op: Ops, node: ir.Node) -> Replacement:
    """norm(x, 1) s = norm(x, s), for a scale of the normalised shape."""
    for y in node.inputs:
        norm = made_by(y, *_NORMS)
        if norm is None or y is None or not _is_bare(norm):
            continue
        s = other_input(node, y)
        if s is not y and _has_normalised_shape(s, norm):
            return op.one(norm.op_type, norm.inputs[0], s, **norm.attributes)
    return None


@rule("Add")
def bias(op: Ops, node: ir.Node) -> Replacement:
    """layer_norm(x, s) + b = layer_norm(x, s, b)."""
    for y in node.inputs:
        norm = made_by(y, "LayerNormalization")
        if norm is None or y is None or len(norm.outputs) > 1 or not reads_once(y):
            continue
        b = other_input(node, y)
        if input_of(norm, 2) is None and b is not y and _has_normalised_shape(b, norm):
            return op.LayerNormalization(*norm.inputs[:2], b, **norm.attributes)
    return None


@rule("Cast")
def casts_around(op: Ops, node: ir.Node) -> Replacement:
    """cast(norm(cast(x, float), 1), x's type) = norm(x, 1): it computes in float by itself."""
    norm = made_by(node.inputs[0], *_NORMS)
    if norm is None or not _is_bare(norm):
        return None
    widen = made_by(norm.inputs[0], "Cast")
    x = None if widen is None else widen.inputs[0]
    if x is None or x.dtype not in HALVES:
        return None
    wide = norm.inputs[0]
    if attribute(node, "to") != x.dtype or wide is None or wide.dtype != ir.DataType.FLOAT:
        return None
    size = static(norm.inputs[1])
    assert size is not None
    return op.one(norm.op_type, x, like(np.ones(size), x), **norm.attributes)


def _is_bare(norm: ir.Node) -> bool:
    """Whether a norm, read once, still has the scale of ones and no bias."""
    ones = constant(norm.inputs[1])
    return (
        ones is not None
        and bool((ones == 1).all())
        and input_of(norm, 2) is None
        and len(norm.outputs) == 1
        and reads_once(norm.outputs[0])
    )


def _has_normalised_shape(value: ir.Value | None, norm: ir.Node) -> bool:
    """Whether a scale or bias has x's type and the very shape of the normalised axes."""
    x = norm.inputs[0]
    shape, size = static(value), static(norm.inputs[1])
    if x is None or value is None or shape is None or size is None or value.dtype != x.dtype:
        return False
    return shape == size
