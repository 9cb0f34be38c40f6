"""Add up gradients in float32 where they become float32 anyway.

    Cast(Add(a, b), to=float32)  ->  Add(Cast(a, to=float32), Cast(b, to=float32))

A value that is cast once and read by several nodes has the sum of their gradients: without this
pass it would be rounded to 16 bits before it is cast.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onward.graph.dtypes import HALVES
from onward.passes.drop_unused import drop_unused
from onward.passes.rewrite import Names

_SUMS = ("Add", "Sum")
_FLOAT = ir.DataType.FLOAT


def widen_sums(model: ir.Model, forward: Collection[ir.Node]) -> None:
    """Add up 16-bit gradients in float32, in place; `forward` are the nodes of the forward pass."""
    names = Names(model)
    waiting = [node for node in model.graph if node not in forward]
    changed = False
    while waiting:
        cast = waiting.pop()
        total = _narrow_sum(cast, forward)
        if total is None:
            continue
        terms = [_wide(term, total, names) for term in total.inputs if term is not None]
        waiting += [node for term in terms if (node := term.producer()) is not None]
        _replace(cast, total, terms, names)
        changed = True
    if changed:
        drop_unused(model)


def _narrow_sum(cast: ir.Node, forward: Collection[ir.Node]) -> ir.Node | None:
    """The sum in 16 bits that a Cast to float32 is the only reader of."""
    if cast.op_type != "Cast" or cast.domain or cast.graph is None or cast in forward:
        return None
    (value,) = cast.inputs
    total = None if value is None else value.producer()
    if value is None or total is None or total in forward or total.graph is not cast.graph:
        return None
    is_sum = total.op_type in _SUMS and not total.domain and value.dtype in HALVES
    is_alone = len(value.uses()) == 1 and not value.is_graph_output()
    return total if is_sum and is_alone and cast.outputs[0].dtype == _FLOAT else None


def _wide(term: ir.Value, before: ir.Node, names: Names) -> ir.Value:
    """A term in float32: what was rounded to it, or a Cast of it."""
    maker = term.producer()
    rounded = None if maker is None or maker.op_type != "Cast" else maker.inputs[0]
    if rounded is not None and rounded.dtype == _FLOAT:
        return rounded
    made = ir.Value(name=names.fresh(f"{term.name}_32"), shape=term.shape)
    made.type = ir.TensorType(_FLOAT)
    to = ir.AttrInt64("to", int(_FLOAT))
    cast = ir.Node("", "Cast", [term], [to], outputs=[made], name=names.fresh("Cast"))
    assert before.graph is not None
    before.graph.insert_before(before, cast)
    return made


def _replace(cast: ir.Node, total: ir.Node, terms: list[ir.Value], names: Names) -> None:
    """Let a sum of float32 terms take the place of a Cast, with its output's name."""
    old, graph = cast.outputs[0], cast.graph
    assert graph is not None
    made = ir.Value(name=old.name, shape=old.shape, type=old.type)
    wide = ir.Node("", total.op_type, terms, outputs=[made], name=names.fresh(total.op_type))
    graph.insert_before(cast, wide)
    old.name = names.fresh(f"{old.name}/narrow")
    for node, place in list(old.uses()):
        node.replace_input_with(place, made)
    for place, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[place] = made
    graph.remove(cast, safe=True)
