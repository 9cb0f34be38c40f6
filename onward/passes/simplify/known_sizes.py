"""Replace arithmetic on shapes by constants where the sizes are known.

Exporters write `reshape(x, concat(gather(shape(x), 0), 12, 64))`. Such a chain is evaluated element
by element: numbers, names of dimensions, or unknown. If all are numbers, the result is a constant;
a Reshape's target may also copy a size (0) or leave one size to be inferred (-1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import (
    Dim,
    attribute,
    constant,
    dims,
    input_of,
    ints,
    made_by,
    static,
)

rule = Rules()

Sizes = np.ndarray[Any, Any]  # of objects: int, str (a dimension's name) or None
_DEEPEST = 32
_LONGEST = 64  # elements; a longer tensor is data, not a shape
_WHOLE = (ir.DataType.INT64, ir.DataType.INT32)

_ARITHMETIC: dict[str, Callable[[int, int], int | None]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: int(a / b) if b and abs(a) < 1 << 50 else None,
    "Max": max,
    "Min": min,
}
_EVALUATED = (
    *("Shape", "Size", "Gather", "Slice", "Concat", "Cast", "Identity"),
    *("Unsqueeze", "Squeeze", "Reshape", *_ARITHMETIC),
)


@rule(*_EVALUATED)
def known_sizes(op: Ops, node: ir.Node) -> Replacement:
    """Replace a value whose elements are all known by a constant."""
    (y, *_) = node.outputs
    if y.dtype not in _WHOLE:
        return None
    sizes = evaluate_sizes(y)
    if sizes is None or not all(isinstance(size, int) for size in sizes.reshape(-1)):
        return None
    array = sizes.astype(y.dtype.numpy())
    return op.constant(array)


@rule("Reshape")
def known_target(op: Ops, node: ir.Node) -> Replacement:
    """Reshape to a constant target, if all sizes but one are known or copied from x."""
    x, target = node.inputs
    if x is None or target is None or ints(target) is not None:
        return None
    sizes, result = evaluate_sizes(target), dims(node.outputs[0])
    if node.outputs[0].is_graph_output():
        result = None  # a declared shape may be wrong
    if sizes is None and result is None:
        return None
    length = len(sizes) if sizes is not None else len(result or ())
    wanted = [None] * length if sizes is None else list(sizes)
    proven = result if result is not None and len(result) == length else ()
    found = [_size(*each) for each in zip_longest(wanted, proven, dims(x) or ())][:length]
    if found.count(-1) > 1 or None in found:
        return None
    if -1 in found and 0 in found and -1 not in wanted:
        return None  # for a tensor without elements, -1 is ambiguous
    return op.Reshape(x, found)


def _size(wanted: Dim, proven: Dim, copied: Dim) -> int | None:
    """One number of a Reshape's target: 0 copies x's size, -1 is inferred, None is impossible."""
    if isinstance(wanted, int):
        return wanted or None  # a true zero would be read as a copy
    if isinstance(proven, int):
        return proven or None
    if isinstance(wanted, str) and wanted == copied:
        return 0
    return -1


@rule("Range")
def range_of_scalars(op: Ops, node: ir.Node) -> Replacement:
    """Reshape constant bounds of one element to scalars, which engines require."""
    bounds = [constant(value, 1) for value in node.inputs]
    if not any(bound is not None and bound.ndim for bound in bounds):
        return None
    flat = [
        value if bound is None else bound.reshape(()) for value, bound in zip(node.inputs, bounds)
    ]
    return op.Range(*flat, **node.attributes)


def evaluate_sizes(value: ir.Value | None) -> Sizes | None:
    """The elements of an integer tensor: numbers, names of dimensions, or None for unknown ones.

    None if nothing is known.
    """
    return _evaluate(value, {}, 0)


def _evaluate(
    value: ir.Value | None, known: dict[ir.Value | None, Sizes | None], depth: int
) -> Sizes | None:
    if value not in known:
        known[value] = _compute(value, known, depth)
    return known[value]


def _compute(
    value: ir.Value | None, known: dict[ir.Value | None, Sizes | None], depth: int
) -> Sizes | None:
    array = constant(value, _LONGEST)
    if array is not None:
        if array.dtype.kind not in "iu":
            return None
        return _objects([int(item) for item in array.reshape(-1)], array.shape)
    node = made_by(value, *_EVALUATED)
    if node is None or depth > _DEEPEST:
        return None
    if node.op_type == "Shape":
        return _shape(node)
    if node.op_type == "Size":
        sizes = static(node.inputs[0])
        return None if sizes is None else _objects([math.prod(sizes)], ())
    inputs = [_evaluate(operand, known, depth + 1) for operand in node.inputs]
    if any(operand is None for operand in inputs):
        return None
    try:
        found = _apply(node, [operand for operand in inputs if operand is not None])
    except (IndexError, ValueError, TypeError):
        return None
    return found if found is not None and found.size <= _LONGEST else None


def _apply(node: ir.Node, inputs: list[Sizes]) -> Sizes | None:
    x, operator = inputs[0], node.op_type
    if operator in ("Cast", "Identity"):
        return x if node.outputs[0].dtype in _WHOLE else None
    if operator in _ARITHMETIC:
        return _arithmetic(operator, inputs) if len(inputs) == 2 else None
    if operator == "Concat":
        return np.concatenate(inputs, axis=attribute(node, "axis"))
    if operator == "Gather":
        indices = inputs[1].astype(np.int64)
        return np.asarray(np.take(x, indices, axis=attribute(node, "axis", 0)), dtype=object)
    if operator == "Slice":
        return _slice(node, x)
    axes = ints(input_of(node, 1))
    if operator == "Unsqueeze" and axes is not None:
        return np.expand_dims(x, tuple(axes))
    if operator == "Squeeze":
        return np.squeeze(x, None if axes is None else tuple(axes))
    if operator == "Reshape" and axes is not None and 0 not in axes:
        return x.reshape(axes)
    return None


def _shape(node: ir.Node) -> Sizes | None:
    sizes = dims(node.inputs[0])
    if sizes is None:
        return None
    start, end = attribute(node, "start", 0), attribute(node, "end")
    part = list(sizes)[slice(*slice(start, end).indices(len(sizes)))]
    return _objects(part, (len(part),))


def _slice(node: ir.Node, x: Sizes) -> Sizes | None:
    if x.ndim != 1:
        return None
    starts, ends = ints(node.inputs[1]), ints(node.inputs[2])
    steps = [1] if input_of(node, 4) is None else ints(input_of(node, 4))
    if not starts or not ends or not steps or len(starts) != 1 or steps[0] < 1:
        return None
    return x[slice(starts[0], ends[0], steps[0])]


def _arithmetic(operator: str, inputs: list[Sizes]) -> Sizes | None:
    a, b = np.broadcast_arrays(*inputs)
    compute = _ARITHMETIC[operator]
    found = [
        compute(x, y) if isinstance(x, int) and isinstance(y, int) else None
        for x, y in zip(a.reshape(-1), b.reshape(-1))
    ]
    return _objects(found, a.shape)


def _objects(items: list[Any], shape: tuple[int, ...]) -> Sizes:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array.reshape(shape)
