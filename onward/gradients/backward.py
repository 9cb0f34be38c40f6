"""The backward pass over a graph: apply each node's rule in reverse order, and sum gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from onward.errors import MissingGradient
from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import Gradients, NoGradient
from onward.graph.dtypes import FLOATS
from onward.graph.operator_table import AbstractOpTable
from onward.graph.scopes import reads

Found = dict[ir.Value, ir.Value]


# their integer outputs carry gradients
STRAIGHT_THROUGH = {"QuantizeLinear", "DynamicQuantizeLinear"}


def backward(
    op: GradientOps,
    nodes: Sequence[ir.Node],
    seeds: Mapping[ir.Value, ir.Value],
    wrt: Collection[ir.Value],
) -> Found:
    """The gradients of the values in `wrt`, given those of the values in `seeds`.

    dx = sum over consumers of (d consumer / dx)' d consumer, from the last node to the first.
    """
    active = op.active = active_values(op.rules, op.opset, nodes, wrt)
    terms_of: dict[ir.Value, list[ir.Value]] = {value: [seed] for value, seed in seeds.items()}
    for node in reversed(nodes):
        if not any(value in active for value in reads(node)):
            continue
        dys = [_total(op, terms_of, value) for value in node.outputs]
        if any(dy is not None for dy in dys):
            for value, gradient in _pairs(node, _apply(op, node, dys)):
                if value in active:
                    _copy_shape(gradient, value)
                    terms_of.setdefault(value, []).append(gradient)
    totals = {value: _total(op, terms_of, value) for value in wrt}
    return {value: total for value, total in totals.items() if total is not None}


def is_differentiable(value: ir.Value) -> bool:
    """Whether a value can have a gradient: a float tensor, or a sequence or optional of them."""
    kind = value.type
    while kind is not None and isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        kind = kind.elem_type
    return kind is None or kind.dtype in FLOATS


def active_values(
    rules: AbstractOpTable,
    opset: Callable[[str], int],
    nodes: Iterable[ir.Node],
    wrt: Collection[ir.Value],
) -> set[ir.Value]:
    """Values that depend on `wrt` through differentiable operators."""
    return set(sources_of_values(rules, opset, nodes, wrt))


def sources_of_values(
    rules: AbstractOpTable,
    opset: Callable[[str], int],
    nodes: Iterable[ir.Node],
    wrt: Iterable[ir.Value],
) -> dict[ir.Value, int]:
    """The active values, each with those of `wrt` that it depends on: bit i is the i-th one."""
    sources = {value: 1 << i for i, value in enumerate(wrt)}
    for node in nodes:
        found = 0
        for value in reads(node):
            found |= sources.get(value, 0)
        if found:
            rule = rules.find(node.domain, node.op_type, opset(node.domain))
            if not isinstance(rule, NoGradient):
                carried = [value for value in node.outputs if _carries(node, value, sources)]
                sources.update(dict.fromkeys(carried, found))
    return sources


def _carries(node: ir.Node, y: ir.Value, active: Collection[ir.Value]) -> bool:
    """Whether an output has a gradient: it is a float, or a quantized float."""
    if is_differentiable(y) or node.op_type in STRAIGHT_THROUGH:
        return True
    read_types = [value.dtype for value in node.inputs if value in active and value is not None]
    return y.dtype in read_types  # quantized numbers, transposed or pooled


def _total(
    op: GradientOps, terms_of: dict[ir.Value, list[ir.Value]], y: ir.Value
) -> ir.Value | None:
    """The sum of the gradients that y's consumers contribute."""
    terms = terms_of.get(y, [])
    if not terms:
        return None
    if len(terms) > 1:
        terms[:] = [op.total(terms)]
        _copy_shape(terms[0], y)
    return terms[0]


def _copy_shape(gradient: ir.Value, x: ir.Value) -> None:
    """Give a gradient the known sizes of its value, where inference found none."""
    known, found = x.shape, gradient.shape
    if known is None or gradient.is_graph_output():
        return
    if found is None:
        gradient.shape = known
    elif len(found) == len(known) and not found.is_static() and found != known:
        sizes = [n if isinstance(n, int) else size for n, size in zip(found, known)]
        gradient.shape = ir.Shape(sizes)


def _apply(op: GradientOps, node: ir.Node, dys: list[ir.Value | None]) -> Gradients:
    rule = op.rules.find(node.domain, node.op_type, op.opset(node.domain))
    if rule is None:
        raise _no_rule(node)
    if not getattr(rule, "takes_none", False):
        pairs = zip(dys, node.outputs)
        dys = [op.zeros_like(y) if dy is None and y.name else dy for dy, y in pairs]
    try:
        found: Gradients = rule(op, node, *dys)
    except MissingGradient:
        raise  # it names a node in a subgraph
    except (ValueError, KeyError, AssertionError) as error:
        unknown = _unknown_operator(op, node)
        if unknown is not None:
            raise _no_rule(unknown) from error
        raise MissingGradient(
            f"{node.op_type} (node {node.name!r}) cannot be differentiated here: {error}"
        ) from error
    return found


def _no_rule(node: ir.Node) -> MissingGradient:
    domain = node.domain or "ai.onnx"
    return MissingGradient(
        f"no gradient rule for {domain}::{node.op_type} (node {node.name!r})\n"
        f'add one with @gradient("{node.op_type}") and pass rules=GRADIENTS | mine, '
        "or leave its inputs out of wrt"
    )


def _unknown_operator(op: GradientOps, node: ir.Node) -> ir.Node | None:
    """A node before this one that has no rule, and after which no rank is known."""
    todo, seen = [node], {node}
    while todo:
        for value in todo.pop().inputs:
            maker = None if value is None or value.shape is not None else value.producer()
            if maker is None or maker in seen:
                continue
            if op.rules.find(maker.domain, maker.op_type, op.opset(maker.domain)) is None:
                return maker
            seen.add(maker)
            todo.append(maker)
    return None


def _pairs(node: ir.Node, found: Gradients) -> Iterator[tuple[ir.Value, ir.Value]]:
    """The values that the node reads and that have a gradient, with their gradients."""
    if isinstance(found, Mapping):
        yield from found.items()
        return
    gradients = [found] if isinstance(found, ir.Value) or found is None else found
    for value, gradient in zip(node.inputs, gradients):
        if value is not None and gradient is not None:
            yield value, gradient
