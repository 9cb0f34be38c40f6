"""Infer shapes only from inputs and weights; what else a file declares is a hint.

onnxruntime warns about an output or intermediate value whose declared size is wrong, and runs the
model: files keep the sizes of the example that they were exported with. Numbers that were declared
must therefore not be folded into a model; a rank, or a name, is taken where nothing else is known.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.scopes import bodies, walk
from onward.graph.shapes.infer import INVENTED, infer_shapes
from onward.graph.shapes.loops import LoopShapes, first_carried_index

_MOST_ROUNDS = 10  # nested loops are known one after another
_SCANNED = "onward.declared"  # where a Loop's output keeps the shape that the file declared


def infer_from_inputs(model: ir.Model, *, numbers: bool = False) -> ir.Model:
    """Infer every shape again from the model's inputs and weights; types stay.

    A declared shape counts where inference finds none: without its numbers, unless `numbers` asks
    for them, for estimates that compute nothing with them.
    """
    declared = _forget(model)
    loops = LoopShapes(model)
    for _ in range(_MOST_ROUNDS):
        infer_shapes(model)
        if not loops.learn():
            break
        _forget(model)
        loops.write()
    else:
        _forget(model)
        infer_shapes(model)
    if _take_hints(declared, model.graph, numbers):
        infer_shapes(model)
    return model


def scanned_shape(value: ir.Value) -> list[int | None] | None:
    """The sizes of a node's output; for a Loop's, also those declared for a run without a trip."""
    if value.shape is None:
        return None
    sizes = [size if isinstance(size, int) else None for size in value.shape]
    declared = value.meta.get(_SCANNED)
    if declared is None or len(declared) != len(sizes):
        return sizes
    return [hint if size is None else size for size, hint in zip(sizes, declared)]


def _forget(model: ir.Model) -> dict[ir.Value, ir.Shape]:
    """Remove the shapes of nodes' outputs and bodies' inputs; returns them."""
    found = {}
    for node in walk(model.graph):
        _remember_scanned(node)
        inside = [
            value for body in bodies(node) for value in body.inputs[first_carried_index(node) :]
        ]
        for value in (*node.outputs, *inside):
            if value.shape is not None and value.const_value is None:
                found[value] = value.shape
                value.shape = None
    return found


def _remember_scanned(node: ir.Node) -> None:
    """Keep the declared shapes of a Loop's scan outputs: without a trip, there is no other."""
    if node.op_type != "Loop" or node.domain != "" or "body" not in node.attributes:
        return
    carried = len(node.inputs) - first_carried_index(node)
    inner = node.attributes["body"].as_graph().outputs[1 + carried :]
    for value, element in zip(node.outputs[carried:], inner):
        if element.shape is not None:
            sizes = [size if isinstance(size, int) else None for size in element.shape]
            value.meta.setdefault(_SCANNED, [None, *sizes])


def _take_hints(declared: dict[ir.Value, ir.Shape], graph: ir.Graph, numbers: bool) -> bool:
    """Fill in declared names of unknown sizes and unknown ranks; whether a rank was missing."""
    learnt = False
    given = {str(size) for value in graph.inputs for size in value.shape or ()}
    outputs = set(graph.outputs)
    for value, shape in declared.items():
        hints = [_hint(size, numbers) for size in shape]
        if value in outputs:
            hints = _drop_repeated(hints)
        if value.shape is None:
            value.shape = ir.Shape(hints)
            learnt = True
        elif len(value.shape) == len(hints):
            own = given if value in outputs else None
            pairs = zip(value.shape, hints)
            value.shape = ir.Shape([_merged(size, hint, own) for size, hint in pairs])
    return learnt


def _drop_repeated(hints: list[int | str | None]) -> list[int | str | None]:
    """Hints without a name's second place: torch's older exporter repeats it in outputs wrongly."""
    known: set[int | str | None] = set()
    kept: list[int | str | None] = []
    for hint in hints:
        kept.append(None if isinstance(hint, str) and hint in known else hint)
        known.add(hint)
    return kept


def _merged(
    size: int | ir.SymbolicDim, hint: int | str | None, given: set[str] | None
) -> int | str | ir.SymbolicDim | None:
    """A size, or the hint where it is unknown.

    An output keeps a declared name that no input has (`given`): sessions report it.
    """
    if hint is None or _is_unknown(size):
        return size if hint is None else hint
    keeps = given is not None and isinstance(hint, str) and hint not in given
    return hint if keeps else size


def _hint(size: int | ir.SymbolicDim, numbers: bool) -> int | str | None:
    """A declared size as far as it counts: its name, or its number if numbers count."""
    if isinstance(size, int):
        return size if numbers else None
    return None if _is_unknown(size) else size.value


def _is_unknown(size: int | ir.SymbolicDim) -> bool:
    return isinstance(size, ir.SymbolicDim) and (
        size.value is None or size.value.startswith(INVENTED)
    )
