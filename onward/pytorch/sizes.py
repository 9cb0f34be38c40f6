"""Sizes of a captured model's values: as numbers, for given sizes of the inputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import onnx_ir as ir
import sympy

_INFERRED = "unk__"  # how onnx' shape inference begins the name of a size that it does not know

Numbers = Mapping[str, int]  # of each symbol, such as {"s77": 8}


def fix_sizes(model: ir.Model, numbers: Numbers) -> ir.Model:
    """Replace the symbolic sizes of a captured model by numbers, in place."""
    for value in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs)):
        if value.shape is not None and not value.shape.is_static():
            sizes = [size_in(dim, numbers) for dim in value.shape]
            value.shape = ir.Shape(
                [dim if size is None else size for dim, size in zip(value.shape, sizes)]
            )
    return model


def known_shapes(model: ir.Model) -> dict[str, ir.Shape]:
    """The shapes that torch gave to a captured model's values, by name."""
    values = (value for node in model.graph for value in node.outputs)
    return {str(v.name): v.shape for v in values if v.shape is not None and _is_known(v.shape)}


def restore_shapes(model: ir.Model, shapes: Mapping[str, ir.Shape]) -> None:
    """Give values whose sizes passes lost the shapes that torch gave them, in place.

    onnx infers no sizes of a view whose target is computed in the graph.
    """
    for value in (value for node in model.graph for value in node.outputs):
        shape = shapes.get(str(value.name))
        if shape is None or (value.shape is not None and _is_known(value.shape)):
            continue
        if value.shape is None or len(value.shape) == len(shape):
            value.shape = shape.copy()


def _is_known(shape: ir.Shape) -> bool:
    """Whether no size was left open, or named by shape inference alone."""
    return not any(
        isinstance(dim, ir.SymbolicDim) and (dim.value is None or dim.value.startswith(_INFERRED))
        for dim in shape
    )


def byte_counter(numbers: Numbers) -> Callable[[ir.Value], int | None]:
    """A function: the bytes of a value, None if a size is not known."""

    def count(value: ir.Value) -> int | None:
        if value.shape is None or value.dtype is None:
            return None
        sizes = [size_in(dim, numbers) for dim in value.shape]
        if any(size is None for size in sizes):
            return None
        return math.ceil(math.prod(size or 0 for size in sizes) * value.dtype.itemsize)

    return count


def size_in(dim: int | ir.SymbolicDim, numbers: Numbers) -> int | None:
    """A size as a number; None if a symbol of it has none."""
    if isinstance(dim, int):
        return dim
    return None if dim.value is None else _evaluate(dim.value, tuple(numbers.items()))


@functools.lru_cache(4096)
def _evaluate(expression: str, numbers: tuple[tuple[str, int], ...]) -> int | None:
    known = dict(numbers)
    if expression in known:
        return known[expression]
    try:
        symbols = {name: sympy.Symbol(name) for name in known}
        found = sympy.sympify(expression, locals=symbols)
        found = found.subs({symbols[name]: number for name, number in known.items()})
        return int(found) if found.is_integer and found.is_number else None
    except (sympy.SympifyError, TypeError, ValueError, AttributeError, SyntaxError):
        return None
