"""Gradient of Resize: a matrix product along each axis, transposed.

The matrix is the Resize of an identity matrix: so every mode has the same gradient rule, and the
gradient has the rounding of the engine's Resize.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps, Size, numpy_type, rank
from onward.gradients.rule import GradientTable
from onward.gradients.rules.linear import equal_places
from onward.gradients.rules.windows import with_rank
from onward.passes.simplify.known_sizes import evaluate_sizes
from onward.passes.value_facts import attribute, constant, dims, input_of

gradient = GradientTable()

_HALF_PIXEL = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
_MODES = (
    "antialias",
    "coordinate_transformation_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "keep_aspect_ratio_policy",
    "mode",
    "nearest_mode",
)  # elements outside of x have no gradient: extrapolation_value is 0


class _Axis(NamedTuple):
    """An axis of x that may be resized."""

    axis: int
    number: int  # its place in roi, scales and sizes
    times: int | None  # repetitions of each element, if the axis only repeats


@gradient("Resize")
def resize(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = M' dy along each axis, y = M x; where elements are only repeated, the copies' sum"""
    x = node.inputs[0]
    assert x is not None
    resized = _resized(op, node, x)
    sizes = op.sizes(with_rank(node.outputs[0], rank(x)))
    dy = with_rank(dy, rank(x))
    for a in reversed(resized):
        size = op.size(x, a.axis)
        if a.times is not None:
            dy = _summed(op, dy, sizes, a, size)
        else:
            dy = _product(op, _matrix(op, node, x, a), dy, sizes, a.axis)
        sizes[a.axis] = size
    return dy


def _resized(op: GradientOps, node: ir.Node, x: ir.Value) -> list[_Axis]:
    """The axes that may be resized, without those that are known to keep their size."""
    axes = [a % rank(x) for a in attribute(node, "axes") or range(rank(x))]
    found = []
    for number, axis in enumerate(axes):
        times = _times(node, x, axis, number)
        if times != 1 or attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize":
            found.append(_Axis(axis, number, times if _repeats(node) else None))
    return sorted(found)


def _times(node: ir.Node, x: ir.Value, axis: int, number: int) -> int | None:
    """The scale of an axis, if it is a whole number; 1 if the axis keeps its symbolic size."""
    scales, sizes = constant(input_of(node, 2)), evaluate_sizes(input_of(node, 3))
    if scales is not None and scales.size:
        scale = float(scales[number])
        return int(scale) if scale.is_integer() else None
    if sizes is None or attribute(node, "keep_aspect_ratio_policy") != "stretch":
        return None
    old, new = (dims(x) or [])[axis], sizes[number]
    if isinstance(old, int) and isinstance(new, int):
        return new // old if old and new and new % old == 0 else None
    return 1 if old is not None and old == new else None


def _repeats(node: ir.Node) -> bool:
    """Whether a whole-number scale only repeats elements."""
    if attribute(node, "mode") != "nearest":
        return False
    places, rounding = attribute(node, "coordinate_transformation_mode"), "nearest_mode"
    if places == "asymmetric":
        return bool(attribute(node, rounding) == "floor")
    return places in _HALF_PIXEL and str(attribute(node, rounding)).startswith("round")


def _summed(op: GradientOps, dy: ir.Value, sizes: list[Size], a: _Axis, size: Size) -> ir.Value:
    """(n times) -> (n, times) -> (n)"""
    apart = [*sizes[: a.axis], size, a.times, *sizes[a.axis + 1 :]]
    copies = op.Reshape(dy, op.shape(*apart), allowzero=1)  # type: ignore[arg-type]
    return op.ReduceSum(copies, [a.axis + 1], keepdims=0)


def _product(
    op: GradientOps, matrix: ir.Value, dy: ir.Value, sizes: list[Size], axis: int
) -> ir.Value:
    """M' dy along an axis, M' of shape (size of x, size of y)"""
    axes = len(sizes)
    if axis == axes - 1:
        return op.MatMul(dy, op.Transpose(matrix, perm=[1, 0]))
    if axis == axes - 2:
        return op.MatMul(matrix, dy)
    columns = op.product(*sizes[axis + 1 :])
    rows = op.Reshape(dy, op.shape(*sizes[: axis + 1], columns), allowzero=1)
    shape = op.shape(*sizes[:axis], op.size(matrix, 0), *sizes[axis + 1 :])
    return op.Reshape(op.MatMul(matrix, rows), shape, allowzero=1)


def _matrix(op: GradientOps, node: ir.Node, x: ir.Value, a: _Axis) -> ir.Value:
    """M' = an identity matrix, resized along its last axis: (size of x, size of y)"""
    modes = {name: attribute(node, name) for name in _MODES}
    if attribute(node, "keep_aspect_ratio_policy") != "stretch" and input_of(node, 3) is not None:
        return _matrix_among_others(op, node, x, a, modes)
    size, last = op.size(x, a.axis), max(rank(x), 2) - 1  # as many axes as x has, if it has two
    square = op.Reshape(_identity(op, x, size), op.shape(*[1] * (last - 1), size, size))
    count = len(attribute(node, "axes") or range(rank(x)))
    roi, scales, sizes = (
        _chosen(op, input_of(node, i), places)
        for i, places in ((1, [a.number, count + a.number]), (2, [a.number]), (3, [a.number]))
    )
    matrix = op.Resize(square, roi, scales, sizes, axes=[last], **modes)
    return op.Squeeze(matrix, list(range(last - 1))) if last > 1 else matrix


def _identity(op: GradientOps, x: ir.Value, size: Size) -> ir.Value:
    if isinstance(size, int):
        return op.constant(np.eye(size, dtype=numpy_type(x)))
    return op.cast_like(equal_places(op, size), x)


def _chosen(op: GradientOps, vector: ir.Value | None, places: list[int]) -> ir.Value | None:
    """The elements of a vector for one axis; None for an empty vector."""
    known = constant(vector)
    if vector is None or (vector.shape is not None and vector.shape[0] == 0):
        return None
    return op.Gather(vector, places) if known is None else op.constant(known[places])


def _matrix_among_others(
    op: GradientOps, node: ir.Node, x: ir.Value, a: _Axis, modes: dict[str, Any]
) -> ir.Value:
    """_matrix if one scale is shared by several axes: all of them must be present.

    The identity matrix's columns are along their axis and are repeated along the others, of which
    one index is enough: weights sum to 1.
    """
    axes = [axis % rank(x) for axis in attribute(node, "axes") or range(rank(x))]
    olds, size = [op.size(x, axis) for axis in axes], op.size(x, a.axis)
    alone = [size if axis == a.axis else 1 for axis in axes]
    square = op.Reshape(_identity(op, x, size), op.shape(size, 1, *alone))
    square = op.Expand(square, op.shape(size, 1, *olds))
    inner = list(range(2, 2 + len(axes)))
    roi, sizes = input_of(node, 1), input_of(node, 3)
    resized = op.Resize(square, roi, None, sizes, axes=inner, **modes)
    others = [i for i in inner if i != 2 + a.number]
    resized = op.Slice(resized, [0] * len(others), [1] * len(others), others)
    return op.Squeeze(resized, [1, *others])
