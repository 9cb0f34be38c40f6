"""Which tensors a program keeps between its forward and its backward, and their bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir
import sympy

from onward.graph.shapes.infer import with_input_shapes
from onward.pytorch.captured_program import CapturedProgram
from onward.pytorch.explanation.explained_facts import TensorBytes
from onward.pytorch.explanation.node_origins import NodeOrigins

Shape = tuple[int, ...]


def saved_tensors(program: CapturedProgram, origins: NodeOrigins) -> list[TensorBytes]:
    """The values that the backward graph reads, the largest first, with the example's sizes.

    Parameters and buffers are left out: they are held anyway.
    """
    forward, *backward = program.graphs
    capture = program.capture
    given = {str(value.name): value for value in forward.graph.inputs}
    made = {str(value.name): value for value in forward.graph.outputs}
    read = dict.fromkeys(str(value.name) for graph in backward for value in graph.graph.inputs)
    held = {name: (given | made)[name] for name in read if name in given or name in made}
    found = []
    shapes = _shapes(program, {n: v for n, v in held.items() if n not in capture.tensors})
    for name, shape in shapes.items():
        dtype = held[name].dtype
        size = 0 if dtype is None or shape is None else math.ceil(math.prod(shape) * dtype.itemsize)
        note = "an input" if name in capture.inputs else ""
        found.append(
            TensorBytes(
                name=name,
                kind="saved",
                dtype=show_type(held[name]),
                shape=shape,
                bytes=size,
                module=origins.of_value(name),
                note="a result" if name in capture.results else note,
            )
        )
    return sorted(found, key=lambda each: -each.bytes)


def show_type(value: ir.Value) -> str:
    """
    >>> show_type(ir.val("x", ir.DataType.FLOAT, (2,)))
    'float32'
    """
    return "?" if value.dtype is None else str(value.dtype.numpy())


def _shapes(program: CapturedProgram, values: Mapping[str, ir.Value]) -> dict[str, Shape | None]:
    """The shapes of values for the call that was captured."""
    capture = program.capture
    bound = capture.guards.bind(capture.example) or {}
    numbers = {str(symbol): number for symbol, number in bound.items()}
    found = {name: _evaluate(value.shape, numbers) for name, value in values.items()}
    if all(shape is not None for shape in found.values()):
        return found
    # sizes that inference gave names of its own: infer again from the example's shapes
    fed = {name: _evaluate(v.shape, numbers) for name, v in _inputs(program.graphs[0]).items()}
    fixed = with_input_shapes(program.graphs[0], {n: s for n, s in fed.items() if s is not None})
    inferred = {str(v.name): _evaluate(v.shape, numbers) for v in fixed.graph.outputs}
    return {name: inferred.get(name) if s is None else s for name, s in found.items()}


def _inputs(model: ir.Model) -> dict[str, ir.Value]:
    return {str(value.name): value for value in model.graph.inputs}


def _evaluate(shape: ir.Shape | None, numbers: Mapping[str, int]) -> Shape | None:
    """A shape in numbers; None if a size depends on other symbols."""
    if shape is None:
        return None
    sizes = []
    for size in shape:
        number = size if isinstance(size, int) else _evaluate_size(str(size), numbers)
        if number is None:
            return None
        sizes.append(number)
    return tuple(sizes)


def _evaluate_size(text: str, numbers: Mapping[str, int]) -> int | None:
    """
    >>> _evaluate_size("2*s95", {"s95": 4}), _evaluate_size("unk__1", {})
    (8, None)
    """
    try:
        return int(sympy.sympify(text, locals=dict(numbers)))
    except (sympy.SympifyError, TypeError, ValueError, AttributeError):
        return None
