"""Composite gradients: rules whose nodes become one function call, for engines with a kernel.

    @gradient("LayerNormalization")
    @absent
    @composite("LayerNormalizationGrad", inputs=3, outputs=3)
    def layer_normalization(op, node, dy, *statistics): ...

The call is `onward::LayerNormalizationGrad`. Its inputs are those of the forward node, padded to
`inputs` places; then its outputs, padded to `outputs` places; then as many gradients; then other
values that the rule's nodes read. Its attributes are the forward node's, and `wrt`: the indices of
the forward's inputs whose gradients the call returns. Its body are the nodes that the rule added.

A rule that also changes the forward graph does so first, and records only the nodes after that:

    with recorded(op) as nodes:
        gradients = ...
    return as_call(op, "BatchNormalizationGrad", nodes, inputs, attributes, gradients)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import Gradient
from onward.graph.scopes import reads
from onward.passes.composites import outline

WRT = "wrt"


def composite(
    name: str,
    *,
    inputs: int,
    outputs: int = 1,
    unread: bool = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the nodes that a rule adds one call of a function of domain `onward`.

    With `unread=False`, the call does not take inputs that its body does not read: they would stay
    in memory until the backward pass.
    """

    def decorate(rule: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(rule)
        def outlined(op: GradientOps, node: ir.Node, *dys: Any) -> Any:
            if not op.outlines:
                return rule(op, node, *dys)
            with recorded(op) as nodes:
                found = rule(op, node, *dys)
            if not nodes:
                return found
            forward = [
                *_padded(node.inputs, inputs),
                *_padded([y if y.name else None for y in node.outputs], outputs),
            ]
            if not unread:
                read = {value for each in nodes for value in reads(each)}
                forward = [value if value in read else None for value in forward]
            given = [*forward, *_padded(dys, outputs)]
            return as_call(op, name, nodes, given, attributes_of(node), found)

        return outlined

    return decorate


@contextmanager
def recorded(op: GradientOps) -> Iterator[list[ir.Node]]:
    """Record the nodes that are added to the graph; the list is complete when the block ends.

    Composites among them are not outlined, since a function body calls no functions. Without
    `op.outlines`, nothing is recorded.
    """
    nodes: list[ir.Node] = []
    if not op.outlines:
        yield nodes
        return
    last = next(reversed(op.graph), None)
    op.outlines = False
    try:
        with op.separate_sizes():
            yield nodes
    finally:
        op.outlines = True
    nodes += [*takewhile(lambda each: each is not last, reversed(op.graph))][::-1]


def as_call(
    op: GradientOps,
    name: str,
    nodes: Sequence[ir.Node],
    given: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    found: Any,
) -> list[Gradient]:
    """The gradients as outputs of one call; gradients that no new node computes are unchanged.

    One value that is the gradient of two inputs is one output, listed for the first input.
    """
    gradients: list[Gradient] = [found] if isinstance(found, ir.Value) else list(found or ())
    made = {value for each in nodes for value in each.outputs}
    wrt: dict[ir.Value, int] = {}
    for i, gradient in enumerate(gradients):
        if gradient is not None and gradient in made:
            wrt.setdefault(gradient, i)
    if not op.outlines or not wrt:
        return gradients
    assert op.functions is not None
    results = outline(
        op.functions, op.opsets, nodes, name, given, [*wrt], {**attributes, WRT: [*wrt.values()]}
    )
    instead: dict[Gradient, ir.Value] = dict(zip(wrt, results))
    return [instead.get(gradient, gradient) for gradient in gradients]


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """A node's attributes as Python values."""
    return {key: attribute.value for key, attribute in node.attributes.items()}


def _padded(values: Sequence[Any], size: int) -> list[Any]:
    return [*values[:size], *[None] * (size - len(values))]
