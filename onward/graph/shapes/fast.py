"""Infer types and shapes of common operators on floats, without ONNX.

A graph under construction needs thousands of them, and ONNX takes ten times as long. Everything
else (an unknown size where it matters, an invalid node) is left to ONNX.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from onward.graph.dtypes import FLOATS

Sizes = list[Any]

# Operators that compute element by element, and take every float type.
_ELEMENTWISE = frozenset(
    (
        *("Abs", "Add", "Ceil", "Cos", "Div", "Erf", "Exp", "Floor", "Identity", "Log", "Mul"),
        *("Neg", "Reciprocal", "Relu", "Sigmoid", "Sign", "Sin", "Sqrt", "Sub", "Sum", "Tanh"),
    )
)


def infer_fast(node: ir.Node) -> bool:
    """Write types and shapes onto the node's outputs; False if ONNX must infer them."""
    if node.op_type == "LayerNormalization" and not node.domain:
        return _normalized(node)
    if node.domain or len(node.outputs) != 1 or not node.inputs:
        return False
    if node.op_type in _ELEMENTWISE:
        return _elementwise(node)
    law, x = _LAWS.get(node.op_type), node.inputs[0]
    if law is None or x is None or x.shape is None:
        return False
    if not isinstance(x.type, ir.TensorType) or x.type.dtype not in FLOATS:
        return False
    sizes = law(node, list(x.shape))
    if sizes is None:
        return False
    node.outputs[0].type, node.outputs[0].shape = x.type, ir.Shape(sizes)
    return True


def size_added_axes(model: ir.Model) -> bool:
    """Give the axes that Unsqueeze adds their size, 1, where ONNX did not infer it; whether it had.

    ONNX does where it would have to follow a long vector, which `infer_shapes` hides from it.
    """
    found = False
    for node in model.graph:
        x, y = (node.inputs[0] if node.inputs else None), node.outputs[0]
        if node.op_type != "Unsqueeze" or x is None or x.shape is None or y.is_graph_output():
            continue
        sizes = _unsqueezed(node, list(x.shape))
        if sizes is not None and (y.shape is None or sizes != list(y.shape)):
            y.shape, found = ir.Shape(sizes), True
    return found


def _elementwise(node: ir.Node) -> bool:
    """Floats of one type, broadcast."""
    widest, kind = None, node.inputs[0].type if node.inputs[0] is not None else None
    if not isinstance(kind, ir.TensorType) or kind.dtype not in FLOATS:
        return False
    for value in node.inputs:
        if value is None or value.type != kind or value.shape is None:
            return False
        if any(not isinstance(size, int) and size.value is None for size in value.shape):
            return False
        if widest is None or len(value.shape) > len(widest):
            widest = value.shape
    assert widest is not None
    shapes = [value.shape for value in node.inputs if value is not None]
    for shape in shapes:
        if shape is not widest and shape != widest and any(size != 1 for size in shape or ()):
            sizes = _broadcast([list(shape or ()) for shape in shapes])
            if sizes is None:
                return False
            widest = ir.Shape(sizes)
            break
    node.outputs[0].type, node.outputs[0].shape = kind, widest
    return True


def _normalized(node: ir.Node) -> bool:
    """LayerNormalization of float32: x's shape; mean and deviation have 1 along normalised axes."""
    x, axis = node.inputs[0], node.attributes.get_int("axis", -1)
    if x is None or x.shape is None or x.dtype != ir.DataType.FLOAT:
        return False
    if node.attributes.get_int("stash_type", 1) != 1 or not -len(x.shape) <= axis < len(x.shape):
        return False
    axis %= len(x.shape)
    for index, y in enumerate(node.outputs):
        ones = [1] * (len(x.shape) - axis)
        y.type = x.type
        y.shape = x.shape if index == 0 else ir.Shape([*x.shape[:axis], *ones])
    return True


def _broadcast(shapes: list[Sizes]) -> Sizes | None:
    """The broadcast of known sizes; None if they do not fit, or one is a name."""
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if not isinstance(size, int) or (
                size != result[axis] and 1 not in (size, result[axis])
            ):
                return None
            result[axis] = size if result[axis] == 1 else result[axis]
    return result


def _transposed(node: ir.Node, sizes: Sizes) -> Sizes | None:
    perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else None
    order = range(len(sizes))[::-1] if perm is None else perm
    return [sizes[axis] for axis in order] if sorted(order) == list(range(len(sizes))) else None


def _gemm(node: ir.Node, sizes: Sizes) -> Sizes | None:
    """Gemm of two matrices that fit each other."""
    others = _second(node)
    if others is None or len(sizes) != 2 or len(others) != 2:
        return None
    turned_a, turned_b = (node.attributes.get_int(name, 0) for name in ("transA", "transB"))
    (rows, inner), (other, columns) = sizes[:: 1 - 2 * turned_a], others[:: 1 - 2 * turned_b]
    return [rows, columns] if inner == other or not isinstance(inner, int) else None


def _matmul(node: ir.Node, sizes: Sizes) -> Sizes | None:
    """Batches of matrices that fit each other."""
    others = _second(node)
    if others is None or len(sizes) < 2 or len(others) < 2 or sizes[-1] != others[-2]:
        return None
    if len(others) == 2:
        return [*sizes[:-1], others[-1]]
    batch = _broadcast([sizes[:-2], others[:-2]])
    return None if batch is None else [*batch, sizes[-2], others[-1]]


def _second(node: ir.Node) -> Sizes | None:
    b = node.inputs[1]
    if b is None or b.shape is None or b.type != node.inputs[0].type:  # type: ignore[union-attr]
        return None
    return list(b.shape)


def _summed(node: ir.Node, sizes: Sizes) -> Sizes | None:
    """A reduction over constant axes."""
    axes = _axes(node, len(sizes))
    if not axes:
        return None
    kept = [1 if axis in axes else size for axis, size in enumerate(sizes)]
    keep = node.attributes.get_int("keepdims", 1)
    return kept if keep else [size for axis, size in enumerate(sizes) if axis not in axes]


def _reshaped(node: ir.Node, sizes: Sizes) -> Sizes | None:
    """Reshape to constants, of which one may be -1."""
    wanted = _numbers(node, 1)
    if wanted is None or 0 in wanted or not all(isinstance(size, int) for size in sizes):
        return None
    count, known = math.prod(sizes), math.prod(size for size in wanted if size != -1)
    if wanted.count(-1) == 1 and known > 0 and count % known == 0:
        return [count // known if size == -1 else size for size in wanted]
    return wanted if min(wanted, default=1) > 0 and known == count else None


def _flattened(node: ir.Node, sizes: Sizes) -> Sizes | None:
    axis = node.attributes.get_int("axis", 1)
    if not all(isinstance(size, int) for size in sizes) or abs(axis) > len(sizes):
        return None
    axis = axis + len(sizes) if axis < 0 else axis
    return [math.prod(sizes[:axis]), math.prod(sizes[axis:])]


def _squeezed(node: ir.Node, sizes: Sizes) -> Sizes | None:
    axes = _axes(node, len(sizes))
    if not axes or any(sizes[axis] != 1 for axis in axes):
        return None
    return [size for axis, size in enumerate(sizes) if axis not in axes]


def _unsqueezed(node: ir.Node, sizes: Sizes) -> Sizes | None:
    new = _numbers(node, 1)
    rank = len(sizes) + len(new or ())
    added = _axes(node, rank)
    if new is None or added is None or len(added) != len(new):
        return None
    old = iter(sizes)
    return [1 if axis in added else next(old) for axis in range(rank)]


def _joined(node: ir.Node, sizes: Sizes) -> Sizes | None:
    """Concat of one type, with sizes that differ only along the axis."""
    axis = node.attributes.get_int("axis", 0)
    if not -len(sizes) <= axis < len(sizes):
        return None
    axis, total = axis % len(sizes), 0
    for part in node.inputs:
        if part is None or part.shape is None or part.type != node.inputs[0].type:  # type: ignore[union-attr]
            return None
        theirs = list(part.shape)
        size = theirs[axis] if len(theirs) == len(sizes) else None
        if not isinstance(size, int) or [*theirs[:axis], size, *theirs[axis + 1 :]] != [
            *sizes[:axis],
            size,
            *sizes[axis + 1 :],
        ]:
            return None
        total += size
    return [*sizes[:axis], total, *sizes[axis + 1 :]]


def _axes(node: ir.Node, rank: int) -> set[int] | None:
    """The axes in the second input, not negative."""
    axes = _numbers(node, 1)
    if axes is None or any(not -rank <= axis < rank for axis in axes):
        return None
    return {axis % rank for axis in axes}


def _numbers(node: ir.Node, index: int) -> list[int] | None:
    """A constant input's integers."""
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = None if value is None else value.const_value
    if tensor is None or value is None or value.is_graph_input():
        return None
    numbers: list[int] = tensor.numpy().reshape(-1).tolist()
    return numbers


_LAWS: dict[str, Callable[[ir.Node, Sizes], Sizes | None]] = {
    "Concat": _joined,
    "Flatten": _flattened,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "ReduceLogSumExp": _summed,
    "ReduceMean": _summed,
    "ReduceSum": _summed,
    "Reshape": _reshaped,
    "Squeeze": _squeezed,
    "Transpose": _transposed,
    "Unsqueeze": _unsqueezed,
}
